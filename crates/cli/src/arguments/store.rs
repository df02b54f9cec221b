//! The options of `store`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use nectary_block::parse_size;
use nectary_proxy::by_hand::HeaderLine;

use super::{EngineArguments, TEMPLATE, exit};

/// The commands on stores.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Make an empty store on a device
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary store create ./cache --size 10G
  nectary store create disk:/dev/sdb
  nectary store create ./cache --size 20G --force     (forgets everything in it)", after_help = exit::HELP)]
    Create(CreateArguments),
    /// Show a store's size, contents and counters
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary store stat ./cache
  nectary store stat ./cache --json | jq .entries", after_help = exit::HELP)]
    Stat(ReadArguments),
    /// Read and verify everything in a store; changes nothing
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary store check ./cache
  nectary store check ./cache --json", after_help = exit::HELP)]
    Check(ReadArguments),
    /// Write an object's body to the standard output
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary store get ./cache greeting > copy.txt
  nectary store get ./cache greeting >/dev/null || echo 'not there'
  nectary store get ./cache http://example.org/ --header 'accept-encoding: gzip'", after_help = exit::HELP)]
    Get(GetArguments),
    /// Store a file or the standard input under a key; under a URL, for the proxy to serve
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary store put ./cache greeting hello.txt
  nectary store put ./cache greeting hello.txt --tag news
  tar c . | nectary store put ./cache backup -
  A page that the proxy then serves for a week:
    nectary store put ./cache http://example.org/ index.html --ttl 7d \\
      --header 'content-type: text/html'", after_help = exit::HELP)]
    Put(PutArguments),
    /// Delete all variants of a key, durably
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary store delete ./cache greeting", after_help = exit::HELP)]
    Delete(DeleteArguments),
    /// Delete everything in a store, all keys with a prefix, or all objects with a tag; durable when it returns
    #[command(help_template = TEMPLATE, before_help = "Examples:
  nectary store purge ./cache --prefix http://example.org/images/
  nectary store purge ./cache --tag front-page --tag news
  nectary store purge ./cache --all", after_help = exit::HELP)]
    Purge(PurgeArguments),
}

/// The device that a store is on, and how it is read and written.
#[derive(Debug, Args)]
pub struct DeviceArguments {
    /// Device of the store: a path, `disk:/dev/sdb`, `memory:2G`, or a filter such as `delay(./cache,read=12ms)`
    #[arg(value_name = "SPEC")]
    pub spec: String,
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// The other devices of a store of several spans.
#[derive(Debug, Args)]
pub struct SpanArguments {
    /// Another span of the same store, on another device; may be given again. Name all of them, in any order
    #[arg(long = "span", value_name = "SPEC")]
    pub spans: Vec<String>,
}

/// `store create`.
#[derive(Debug, Args)]
pub struct CreateArguments {
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub spans: SpanArguments,
    /// Size of the store, or of each of several spans, for example 10G; needed for a file that does not exist yet, else
    /// all of the device
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Size of a segment, for example 16M; chosen by the store's size if it is not given
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub segment: Option<u64>,
    /// Overwrite whatever is there
    #[arg(long)]
    pub force: bool,
}

/// `store stat`.
#[derive(Debug, Args)]
pub struct ReadArguments {
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub spans: SpanArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `store get`.
#[derive(Debug, Args)]
pub struct GetArguments {
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub spans: SpanArguments,
    /// The key; the proxy's keys are URLs
    pub key: String,
    /// A header of the request that chooses the variant, if the URL has variants (Vary); may be given again
    #[arg(long, value_name = "NAME: VALUE")]
    pub header: Vec<HeaderLine>,
    /// List the variants of the URL on the store's disk instead, as the --header options that choose them; reads the
    /// whole store
    #[arg(long, conflicts_with = "header")]
    pub variants: bool,
}

/// `store delete`.
#[derive(Debug, Args)]
pub struct DeleteArguments {
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub spans: SpanArguments,
    /// The key; the proxy's keys are URLs
    pub key: String,
}

/// `store purge`.
#[derive(Debug, Args)]
pub struct PurgeArguments {
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub spans: SpanArguments,
    /// All keys that begin with this, and all their variants
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["all", "tag"],
        value_parser = NonEmptyStringValueParser::new())]
    pub prefix: Option<String>,
    /// All objects that have this tag, or one of these if it is given more than once
    #[arg(long, value_name = "TAG", conflicts_with = "prefix", value_parser = NonEmptyStringValueParser::new())]
    pub tag: Vec<String>,
    /// Everything that is in the store
    #[arg(long, conflicts_with_all = ["prefix", "tag"])]
    pub all: bool,
}

/// `store put`.
#[derive(Debug, Args)]
pub struct PutArguments {
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub spans: SpanArguments,
    /// The key; what is put under a URL is a response that the proxy serves
    pub key: String,
    /// The file, or - for the standard input
    pub file: PathBuf,
    /// A tag by which it can be purged; may be given more than once
    #[arg(long, value_name = "TAG", value_parser = NonEmptyStringValueParser::new())]
    pub tag: Vec<String>,
    /// A header of the response, if the key is a URL; may be given again
    #[arg(long, value_name = "NAME: VALUE")]
    pub header: Vec<HeaderLine>,
    /// How long the response is fresh, if the key is a URL: 90, 15m, 12h or 7d; 1d unless a header says it
    #[arg(long, value_name = "TIME", value_parser = nectary_proxy::parse_duration)]
    pub ttl: Option<Duration>,
}
