//! The counters of a device.

/// The counters of one device or filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCounters {
    /// The name of the device or filter in a SPEC, for example `stats` or `model`.
    pub device: &'static str,
    /// The name and the value of each counter. A name ends with its unit and never changes.
    pub values: Vec<(&'static str, u64)>,
}

impl DeviceCounters {
    /// The value of the counter `name`, if the device has such a counter.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.values.iter().find(|value| value.0 == name).map(|value| value.1)
    }
}
