//! The client: exports of any NBD server as devices.
//!
//! Owns: connecting, haggling (the negotiation of options), matching replies to requests by their cookies, several
//! connections, and the SPECs `nbd:`, `nbds:`, `nbd+unix:` and `nbds+unix:`. Promises: data from a server is checked
//! before it is used; every request ends, and it ends with an error if its connection ends first.
//!
//! | file | what is in it |
//! |---|---|
//! | `connect` | from a URL to an export |
//! | `handshake` | haggling: a plain state machine |
//! | `replies` | replies: a plain state machine |
//! | `connection` | requests in flight |
//! | `journal` | the writes that a lost connection may have lost |
//! | `pool` | the connections of a device |
//! | `device`, `operations`, `extents` | the device |
//! | `info` | information about exports |

mod connect;
mod connection;
mod device;
mod extents;
pub(crate) mod handshake;
mod info;
mod journal;
mod operations;
mod pool;
pub(crate) mod replies;

pub use connect::ConnectOptions;
pub use device::NbdDevice;
pub use handshake::ListedExport;
pub use info::{ExportInfo, info, list};

use std::sync::Arc;

use nectary_block::{DeviceOperation, DeviceRegistry, Error, SharedDevice, SpecArguments};

use crate::url::ExportUrl;

/// Registers the schemes of NBD URLs, so that such a URL can be used as a SPEC.
pub fn register(registry: &mut DeviceRegistry) {
    for scheme in ["nbd", "nbds", "nbd+unix", "nbds+unix"] {
        registry.register(scheme, move |arguments| open(scheme, arguments));
    }
}

async fn open(scheme: &'static str, arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let url = ExportUrl::parse(&format!("{scheme}:{}", arguments.rest()?))
        .map_err(|error| arguments.invalid(error.message))?;
    arguments.finish()?;
    let options = ConnectOptions { pads_tail: arguments.options().pads_tail, ..ConnectOptions::default() };
    let connected = NbdDevice::connect(&url, options).await;
    let device = connected
        .map_err(|error| Error::new(error.device_kind(), &url.spec(), DeviceOperation::Open, error.message))?;
    Ok(Arc::new(device))
}
