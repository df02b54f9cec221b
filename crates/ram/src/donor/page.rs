//! A donor's description of itself: one line of text, which is the description and the contents of the export
//! `nectary-donor`.
//!
//! Owns: encoding and decoding the line. The line lets a client distinguish a donor from other NBD servers, and a
//! restarted donor from the earlier process: the incarnation is drawn when the process starts with empty memory.

use std::fmt;

/// The only version that is written and read.
const VERSION: &str = "1";
/// The maximum number of bytes of all labels of a donor.
pub const LABELS_BYTES_MAX: usize = 1024;

/// The description that a donor gives of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DonorPage {
    /// A random number drawn when the process started; another number means that all its earlier contents are lost.
    pub incarnation: u128,
    /// All the memory that it lends, in bytes.
    pub memory_bytes: u64,
    /// The largest device that can be made now, in bytes.
    pub free_bytes: u64,
    /// The largest part that one device may have, in bytes, if that is bounded.
    pub quota_bytes: Option<u64>,
    /// The labels of the donor, for example `rack=a;host=b`.
    pub labels: String,
    /// Whether it takes no more devices, and will end when its clients have gone.
    pub is_leaving: bool,
}

impl DonorPage {
    /// Decodes the line. Unknown words are skipped; returns `None` if the line is not a donor's.
    pub fn parse(text: &str) -> Option<DonorPage> {
        let mut words = text.split_whitespace();
        if (words.next()?, words.next()?) != (super::name::PAGE_NAME, VERSION) {
            return None;
        }
        let (mut incarnation, mut memory_bytes, mut free_bytes, mut labels) = (None, None, None, String::new());
        let (mut quota_bytes, mut is_leaving) = (None, false);
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "incarnation" => incarnation = u128::from_str_radix(value, 16).ok(),
                "memory" => memory_bytes = value.parse().ok(),
                "free" => free_bytes = value.parse().ok(),
                "quota" => quota_bytes = value.parse().ok(),
                "leaving" => is_leaving = value == "1",
                "labels" if value.len() <= LABELS_BYTES_MAX => labels = value.to_owned(),
                _ => {}
            }
        }
        Some(DonorPage {
            incarnation: incarnation?,
            memory_bytes: memory_bytes?,
            free_bytes: free_bytes?,
            quota_bytes,
            labels,
            is_leaving,
        })
    }
}

impl fmt::Display for DonorPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DonorPage { incarnation, memory_bytes, free_bytes, quota_bytes, labels, is_leaving } = self;
        write!(f, "{} {VERSION} incarnation={incarnation:032x}", super::name::PAGE_NAME)?;
        write!(f, " memory={memory_bytes} free={free_bytes} labels={labels}")?;
        if let Some(quota_bytes) = quota_bytes {
            write!(f, " quota={quota_bytes}")?;
        }
        if *is_leaving { write!(f, " leaving=1") } else { Ok(()) }
    }
}

/// Checks a label of a donor, which has the form `KEY=VALUE`. *Errors*: the label has another form; the text names the
/// expected one.
pub fn check_label(label: &str) -> Result<(), String> {
    let is_sound = |text: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !text.is_empty() && text.len() <= 64 && text.chars().all(is_plain)
    };
    match label.split_once('=').is_some_and(|(key, value)| is_sound(key) && is_sound(value)) {
        true => Ok(()),
        false => {
            let shown: String = label.chars().take(140).collect();
            Err(format!("\"{}\" is no label: KEY=VALUE, such as rack=a", shown.escape_debug()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other text is not mistaken for a donor's page.
    #[test]
    fn donor_page_round_trips() {
        let page = DonorPage {
            incarnation: 1 << 90,
            memory_bytes: 8 << 30,
            free_bytes: 0,
            quota_bytes: Some(4 << 30),
            labels: "rack=a;host=b".into(),
            is_leaving: true,
        };
        assert_eq!(DonorPage::parse(&page.to_string()), Some(page.clone()));
        assert_eq!(DonorPage::parse(&format!("{page} more=1 word")), Some(page.clone()));
        let unlabelled = DonorPage { labels: String::new(), quota_bytes: None, ..page };
        assert_eq!(DonorPage::parse(&unlabelled.to_string()), Some(unlabelled));
        for text in ["", "a disk", "nectary-donor 2 incarnation=1 memory=1 free=1", "nectary-donor 1 incarnation=x"] {
            assert_eq!(DonorPage::parse(text), None, "{text}");
        }
        assert!(check_label("rack=a").is_ok());
        for label in ["", "rack", "=a", "rack=", "a=b c", "a=b;c=d"] {
            assert!(check_label(label).is_err(), "{label}");
        }
    }
}
