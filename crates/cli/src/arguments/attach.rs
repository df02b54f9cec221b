//! The options of `attach` and `detach`.

use clap::Args;
use nectary_block::parse_size;

use super::EngineArguments;
use super::ram::ClientArguments;

/// `attach`.
#[derive(Debug, Args)]
pub struct AttachArguments {
    /// The device: a path, `disk:/dev/sdb`, `memory:2G`, `nbd://HOST/EXPORT`, or a filter such as
    /// `cache(./disk.img,memory=1G)` (docs/devices.md)
    #[arg(value_name = "SPEC")]
    pub spec: String,
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Size of a file that does not exist yet and is made, for example 10G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// The block device takes no writes
    #[arg(long)]
    pub read_only: bool,
    #[command(flatten)]
    pub client: ClientArguments,
    /// Stay in the foreground until Ctrl-C or `nectary detach`
    #[arg(long)]
    pub foreground: bool,
    /// Leave the terminal once attached; given by the command to itself
    #[arg(long, hide = true, requires = "foreground")]
    pub leave_terminal: bool,
}

/// `detach`.
#[derive(Debug, Args)]
pub struct DetachArguments {
    /// The block device, for example /dev/loop0, or the SPEC that it was attached by
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Detach it even if the device below fails, and lose what cannot be written to it
    #[arg(long)]
    pub force: bool,
}
