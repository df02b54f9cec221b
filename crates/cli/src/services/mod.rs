//! Long-running commands as services of the machine.
//!
//! Owns: what the service manager is told, and where the parts that it runs are found.

pub mod running_parts;
pub mod service_manager;
