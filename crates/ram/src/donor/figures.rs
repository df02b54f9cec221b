//! The figures of a donor and of its devices.

use serde::Serialize;

/// The figures of a donor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DonorFigures {
    /// The incarnation, in hexadecimal.
    pub incarnation: String,
    /// All memory, in bytes.
    pub memory_bytes: u64,
    /// The memory that is promised to devices, in bytes.
    pub promised_bytes: u64,
    /// The memory that is not promised to any device, in bytes.
    pub free_bytes: u64,
    /// The slabs in use, in bytes.
    pub slabs_bytes: u64,
    /// Whether all memory was allocated and locked at the start.
    pub is_locked: bool,
    /// The largest device, in bytes, if that is bounded.
    pub quota_bytes: Option<u64>,
    /// The labels.
    pub labels: String,
    /// The devices by id.
    pub devices: Vec<DeviceFigures>,
}

/// The figures of a device on a donor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceFigures {
    /// The id of the device.
    pub id: String,
    /// The size of the device on this donor, in bytes.
    pub size_bytes: u64,
    /// The blocks that were written, in bytes.
    pub used_bytes: u64,
    /// The number of connections to the device.
    pub connections: u64,
    /// Whether a client has attached the device and not detached it, connected or not. Only clients of devices with
    /// redundancy say so.
    pub is_attached: bool,
    /// The client that uses the device, in hexadecimal; 0 for a client without a session.
    pub client: String,
    /// The addresses, or local processes, that the client's connections come from.
    pub peers: Vec<String>,
    /// The number of requests.
    pub requests: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of bytes written, zeroed or trimmed.
    pub changed_bytes: u64,
}
