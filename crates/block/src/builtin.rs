//! The names that this crate registers, each with the function that opens it.

use std::sync::Arc;

use crate::device::SharedDevice;
use crate::error::Error;
use crate::memory::MemoryDevice;
use crate::registry::{Arguments, Registry};
use crate::size::parse_size;

/// Registers every device and filter of floor 0.
pub(crate) fn register(registry: &mut Registry) {
    registry.register("memory", memory);
}

async fn memory(arguments: Arguments) -> Result<SharedDevice, Error> {
    let size_bytes = parse_size(arguments.rest()?).map_err(|message| arguments.invalid(message))?;
    arguments.finish()?;
    Ok(Arc::new(MemoryDevice::new(size_bytes)))
}
