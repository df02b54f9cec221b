//! A device's counters.

/// The numbers of one device or filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Its name in a SPEC: `stats`, `model`.
    pub device: &'static str,
    /// Name and value, the unit last in the name; names are stable.
    pub values: Vec<(&'static str, u64)>,
}

impl Figures {
    /// The value of a name, if there is one.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.values.iter().find(|value| value.0 == name).map(|value| value.1)
    }
}
