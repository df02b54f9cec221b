//! Names of exports on a donor: `ID` or `ID/SIZE`, optionally followed by `@INCARNATION.CLIENT.EPOCH`, and then by
//! `.metadata` or `.metadata.read`.
//!
//! `ID` names an existing device; `ID/SIZE` makes it if it does not exist. The part after `@` is the session of a
//! `ram(…)` device: a name with an earlier incarnation of the donor finds nothing, and once a later epoch is used, late
//! requests of earlier epochs are refused. With a session, `SIZE` also makes a smaller device grow. Owns: decoding and
//! encoding names, and the bounds of each part.

use std::fmt;

use nectary_block::{exact_size, parse_size};

/// The longest id of a device, in bytes.
pub const ID_BYTES_MAX: usize = 48;

/// The name of the export that describes the donor.
pub const PAGE_NAME: &str = "nectary-donor";

/// A client's session with a device on a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionName {
    /// The incarnation of the donor that the client knows.
    pub incarnation: u128,
    /// The random number of the client, drawn when it opened the device; never 0.
    pub client: u64,
    /// The number of times that the client has connected, counted from 1.
    pub epoch: u64,
    /// Whether the device has redundancy, and so a metadata area that says which client owns it.
    pub has_metadata: bool,
    /// Whether the session only reads: it may read at any time, even while the device has an owner, and never becomes
    /// the owner.
    pub only_reads: bool,
}

/// The parts of an export's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportName {
    /// The id of the device.
    pub id: String,
    /// The size of the device, if it may be made or may grow. *Units*: bytes, a multiple of 4096 above 0.
    pub size_bytes: Option<u64>,
    /// The session of a `ram(…)` device; `None` for other clients.
    pub session: Option<SessionName>,
}

/// Checks the id of a device. *Errors*: a message that says which ids are valid.
pub fn check_id(id: &str) -> Result<(), String> {
    let is_sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !id.is_empty() && id.len() <= ID_BYTES_MAX && id.chars().all(is_sound) && id != PAGE_NAME {
        true => Ok(()),
        false => {
            let shown: String = id.chars().take(ID_BYTES_MAX + 1).collect();
            Err(format!(
                "\"{}\" is no id of a device: 1 to {ID_BYTES_MAX} letters, digits, \"-\", \"_\" and \".\"",
                shown.escape_debug()
            ))
        }
    }
}

impl ExportName {
    /// Decodes a name. *Errors*: the name has another form; the text names the expected one.
    pub fn parse(name: &str) -> Result<ExportName, String> {
        let (device, session) = match name.split_once('@') {
            Some((device, session)) => {
                (device, Some(SessionName::parse(session).ok_or("this is no session of a client")?))
            }
            None => (name, None),
        };
        let (id, size) = match device.split_once('/') {
            Some((id, size)) => (id, Some(size)),
            None => (device, None),
        };
        check_id(id)?;
        let size_bytes = size.map(parse_size).transpose()?;
        if size_bytes.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(u64::from(super::BLOCK_BYTES))) {
            return Err(format!("a size is a multiple of {} bytes, above 0", super::BLOCK_BYTES));
        }
        Ok(ExportName { id: id.to_owned(), size_bytes, session })
    }
}

impl SessionName {
    fn parse(text: &str) -> Option<SessionName> {
        let mut parts = text.split('.');
        let (incarnation, client, epoch) = (parts.next()?, parts.next()?, parts.next()?);
        let has_metadata = match parts.next() {
            None => false,
            Some("metadata") => true,
            Some(_) => return None,
        };
        let only_reads = match parts.next() {
            None => false,
            Some("read") => true,
            Some(_) => return None,
        };
        let session = SessionName {
            incarnation: u128::from_str_radix(incarnation, 16).ok()?,
            client: u64::from_str_radix(client, 16).ok()?,
            epoch: u64::from_str_radix(epoch, 16).ok()?,
            has_metadata,
            only_reads,
        };
        (parts.next().is_none() && session.client != 0 && session.epoch != 0).then_some(session)
    }
}

impl fmt::Display for ExportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        if let Some(bytes) = self.size_bytes {
            write!(f, "/{}", exact_size(bytes))?;
        }
        match self.session {
            Some(SessionName { incarnation, client, epoch, has_metadata, only_reads }) => {
                let metadata = if has_metadata { ".metadata" } else { "" };
                let read = if only_reads { ".read" } else { "" };
                write!(f, "@{incarnation:032x}.{client:x}.{epoch:x}{metadata}{read}")
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn export_names_round_trip() {
        let session = |has_metadata| {
            Some(SessionName {
                incarnation: u128::MAX - 5,
                client: 7,
                epoch: 1,
                has_metadata,
                only_reads: has_metadata,
            })
        };
        for (id, size_bytes, session) in [
            ("a", None, None),
            ("build-1.x_Y", Some(8 << 30), None),
            ("a", None, session(false)),
            ("a", Some(4096), session(false)),
            ("a", Some(4096), session(true)),
        ] {
            let name = ExportName { id: id.to_owned(), size_bytes, session };
            assert_eq!(ExportName::parse(&name.to_string()), Ok(name));
        }
    }

    #[test]
    fn other_names_are_refused() {
        let long = "a".repeat(ID_BYTES_MAX + 1);
        for name in [
            "",
            "/1G",
            "a/",
            "a/0",
            "a/4095",
            "a/1X",
            "a b",
            "ä",
            "a@",
            "a@1",
            "a@1.0.1",
            "a@1.1.0",
            "a@1.1.1.1",
            "a@1.1.1.metadata.1",
            "a@1.1.1.read",
            "a@1.1.1.metadata.read.1",
        ] {
            assert!(ExportName::parse(name).is_err(), "{name}");
        }
        assert!(check_id(&long).is_err() && check_id(&long[1..]).is_ok());
        assert!(check_id(PAGE_NAME).is_err());
    }
}
