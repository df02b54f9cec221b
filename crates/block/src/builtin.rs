//! The names that this crate registers, each with the function that opens it.

use std::sync::Arc;

use crate::device::SharedDevice;
use crate::error::Error;
use crate::file::FileDevice;
use crate::memory::MemoryDevice;
use crate::registry::{Arguments, Registry};
use crate::size::parse_size;

/// Registers every device and filter of floor 0.
pub(crate) fn register(registry: &mut Registry) {
    registry.register("memory", memory);
    registry.register("file", file);
    registry.register("disk", disk);
}

async fn file(arguments: Arguments) -> Result<SharedDevice, Error> {
    let device = FileDevice::open_file(arguments.rest()?, arguments.options()).await?;
    Ok(Arc::new(device))
}

async fn disk(arguments: Arguments) -> Result<SharedDevice, Error> {
    let device = FileDevice::open_disk(arguments.rest()?, arguments.options()).await?;
    Ok(Arc::new(device))
}

async fn memory(arguments: Arguments) -> Result<SharedDevice, Error> {
    let size_bytes = parse_size(arguments.rest()?).map_err(|message| arguments.invalid(message))?;
    arguments.finish()?;
    Ok(Arc::new(MemoryDevice::new(size_bytes)))
}
