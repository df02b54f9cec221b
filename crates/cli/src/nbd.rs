//! `nectary nbd`: the exports of NBD servers, as they describe them.
//!
//! Owns: the presentation of the answers, and the exit code of `--can`. Leaves to others: sending the requests
//! (`nectary-nbd`).

use nectary_block::format_size;
use nectary_host::tls::ClientTls;
use nectary_nbd::{ConnectOptions, ExportInfo, ExportUrl, info, list};

use crate::arguments::{InfoArguments, ListArguments, NbdCommand, ServerArguments};
use crate::exit::{CommandFailure, GOOD, USAGE};
use crate::output;

/// The exit code for "no".
const NO: u8 = USAGE;

/// Runs the command.
pub async fn run(command: &NbdCommand) -> Result<u8, CommandFailure> {
    match command {
        NbdCommand::Info(arguments) => show(arguments).await,
        NbdCommand::List(arguments) => show_list(arguments).await,
    }
}

fn server(arguments: &ServerArguments) -> Result<(ExportUrl, ConnectOptions), CommandFailure> {
    let url = ExportUrl::parse(&arguments.url).map_err(|error| {
        let remedy = "write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH; nbds for TLS";
        CommandFailure::new(USAGE, error.to_string(), remedy)
    })?;
    let identity = arguments.tls_cert.as_deref().zip(arguments.tls_key.as_deref());
    let is_given = arguments.tls_ca.is_some() || identity.is_some();
    if is_given && !url.tls {
        let message = format!("{}: certificates for a connection without TLS", arguments.url);
        return Err(CommandFailure::new(USAGE, message, "write nbds:// or nbds+unix://"));
    }
    let tls = match is_given {
        true => Some(ClientTls::load(arguments.tls_ca.as_deref(), identity)?),
        false => None,
    };
    let mut options = ConnectOptions::default();
    options.tls = tls;
    Ok((url, options))
}

async fn show(arguments: &InfoArguments) -> Result<u8, CommandFailure> {
    let (url, options) = server(&arguments.server)?;
    let found = info(&url, &options).await?;
    if let Some(word) = &arguments.can {
        return Ok(if found.can(word) { GOOD } else { NO });
    }
    match arguments.server.json {
        true => output::json(&found)?,
        false => output::text(&as_text(&found))?,
    }
    Ok(GOOD)
}

fn as_text(info: &ExportInfo) -> String {
    let mut text = format!("export: \"{}\"\n", info.name.escape_debug());
    if let Some(description) = &info.description {
        text += &format!("description: {description}\n");
    }
    text += &format!("size: {} ({} bytes)\n", format_size(info.size_bytes), info.size_bytes);
    let word = |is: bool| if is { "yes" } else { "no" };
    text += &format!("encrypted: {}\nread-only: {}\n", word(info.tls), word(info.read_only));
    text += &format!("can: {}\n", info.can.join(", "));
    let cannot: Vec<&str> = ExportInfo::WORDS.into_iter().filter(|word| !info.can(word)).collect();
    if !cannot.is_empty() {
        text += &format!("cannot: {}\n", cannot.join(", "));
    }
    let sizes = [
        ("smallest block", info.block_bytes_min),
        ("preferred block", info.block_bytes_preferred),
        ("largest request", info.payload_bytes_max),
    ];
    for (name, bytes) in sizes {
        if let Some(bytes) = bytes {
            text += &format!("{name}: {}\n", format_size(u64::from(bytes)));
        }
    }
    text
}

async fn show_list(arguments: &ListArguments) -> Result<u8, CommandFailure> {
    let (url, options) = server(&arguments.server)?;
    let found = list(&url, &options).await?;
    if arguments.server.json {
        output::json(&found)?;
        return Ok(GOOD);
    }
    let line = |export: &nectary_nbd::ListedExport| {
        let description = export.description.as_deref().map(|text| format!("  {text}")).unwrap_or_default();
        format!("\"{}\"{description}\n", export.name.escape_debug())
    };
    let text: String = found.iter().map(line).collect();
    output::text(if found.is_empty() { "the server lists no exports\n" } else { &text })?;
    Ok(GOOD)
}
