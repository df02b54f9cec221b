//! A donor in a SPEC: `host:port`, `[::1]:7070`, `unix:/path`, or an NBD URL, followed by labels after semicolons.
//!
//! Owns: decoding this text. `h1:7070;rack=a` is the donor at port 7070 of host h1, in rack a. Labels in a SPEC are
//! added to those that the donor itself states. `h5:7070;spare` is a spare donor.

use nectary_block::{DeviceSpec, SpecForm};
use nectary_nbd::ExportUrl;

use crate::donor::page::check_label;

/// The maximum number of labels of one donor.
const LABELS_MAX: usize = 16;

/// The word among the labels that makes a donor a spare.
const SPARE: &str = "spare";

/// The address of a donor, with labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DonorAddress {
    /// The text in the SPEC, without labels.
    pub text: String,
    /// The URL; its export is used if the server is no Nectary donor.
    pub url: ExportUrl,
    /// Labels, each `KEY=VALUE`.
    pub labels: Vec<String>,
    /// Whether it is a spare: it has a part of the device only after it has taken the place of another donor.
    pub is_spare: bool,
}

impl DonorAddress {
    /// Decodes an address. *Errors*: the text has another form; the error names the expected one.
    pub fn parse(text: &str) -> Result<DonorAddress, String> {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let (spare, labels): (Vec<&str>, Vec<&str>) = parts.partition(|part| *part == SPARE);
        let (is_spare, labels) = (!spare.is_empty(), labels.into_iter().map(str::to_owned).collect::<Vec<String>>());
        let checked = labels.iter().try_for_each(|label| check_label(label));
        checked.map_err(|error| format!("{error}; or {SPARE}"))?;
        if labels.len() > LABELS_MAX {
            return Err(format!("{name} has {} labels, at most {LABELS_MAX} are taken", labels.len()));
        }
        let is_url = ["nbd:", "nbds:", "nbd+unix:", "nbds+unix:"].iter().any(|scheme| name.starts_with(scheme));
        let shown: String = name.chars().take(100).collect();
        let url = match (is_url, name.strip_prefix("unix:")) {
            (true, _) => ExportUrl::parse(name).map_err(|error| error.to_string())?,
            (false, Some(path)) => {
                let is_plain = |character: char| character.is_alphanumeric() || "/._-".contains(character);
                if !path.starts_with('/') || !path.chars().all(is_plain) {
                    let other = "\"nbd+unix:///?socket=PATH\" for other characters than letters, digits and /._-";
                    return Err(format!("\"{shown}\" is no donor: write unix:/path, or {other}"));
                }
                ExportUrl::parse(&format!("nbd+unix:///?socket={path}")).map_err(|error| error.to_string())?
            }
            (false, None) => {
                let expected =
                    format!("\"{shown}\" is no donor: write host:port, [::1]:port, unix:/path, or an NBD URL");
                let has_port = name.rsplit_once(':').is_some_and(|(host, port)| {
                    port.parse::<u16>().is_ok_and(|port| port > 0) && (!host.contains(':') || host.ends_with(']'))
                });
                if !has_port || name.contains(['/', '?', '@', ' ']) {
                    return Err(expected);
                }
                ExportUrl::parse(&format!("nbd://{name}/")).map_err(|_| expected)?
            }
        };
        Ok(DonorAddress { text: name.to_owned(), url, labels, is_spare })
    }

    /// Returns the text for a SPEC, including labels.
    pub fn spec(&self) -> String {
        let spare = self.is_spare.then_some(SPARE);
        let labels: String =
            self.labels.iter().map(String::as_str).chain(spare).map(|label| format!(";{label}")).collect();
        DeviceSpec { position: 0, form: SpecForm::Text(format!("{}{labels}", self.text)) }.to_string()
    }

    /// Returns the URL of another export of the same server.
    pub fn export(&self, name: &str) -> ExportUrl {
        ExportUrl { export: name.to_owned(), ..self.url.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn donor_addresses_are_parsed() {
        for (text, url, spec) in [
            ("h1:7070", "nbd://h1:7070/", "h1:7070"),
            ("[::1]:7070", "nbd://[::1]:7070/", "[::1]:7070"),
            ("10.0.0.1:10809", "nbd://10.0.0.1/", "10.0.0.1:10809"),
            ("nbds://h/x", "nbds://h/x", "nbds://h/x"),
            ("nbd+unix:///?socket=/a", "nbd+unix:///?socket=/a", "\"nbd+unix:///?socket=/a\""),
            ("unix:/run/d-1.sock", "nbd+unix:///?socket=/run/d-1.sock", "unix:/run/d-1.sock"),
        ] {
            let address = DonorAddress::parse(text).unwrap();
            assert_eq!((address.url.to_string().as_str(), address.spec().as_str()), (url, spec));
        }
        let labelled = DonorAddress::parse("h1:7070;rack=a; host=b").unwrap();
        assert_eq!(
            (labelled.labels.join(" "), labelled.spec()),
            ("rack=a host=b".into(), "\"h1:7070;rack=a;host=b\"".into())
        );
        let spare = DonorAddress::parse("h1:7070;spare;rack=a").unwrap();
        assert!(spare.is_spare && !labelled.is_spare && spare.labels == ["rack=a"]);
        assert_eq!(DonorAddress::parse(&spare.spec().replace('"', "")).unwrap(), spare);
        assert_eq!(labelled.export("disk/1G@2").to_string(), "nbd://h1:7070/disk/1G%402");
        for text in
            ["", "h1", "h1:", "h1:0", "h1:x", "::1:7070", "/a", "h1:7070/x", "h1:70700", "h1:7070;rack", "memory:1G"]
        {
            let error = DonorAddress::parse(text).unwrap_err();
            assert!(error.contains("host:port") || error.contains("no label"), "{text}: {error}");
        }
    }
}
