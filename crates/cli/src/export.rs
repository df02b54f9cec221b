//! `nectary export`: devices for NBD clients.
//!
//! Owns: the names of exports, the control socket of a server, and its reaction to signals. Leaves to others: serving
//! (`nectary-nbd`).

use std::sync::Arc;

use anyhow::Context;
use nectary_block::{OpenOptions, SharedDevice};
use nectary_buffer::CacheList;
use nectary_host::log::{self, LogLevel};
use nectary_host::tls::ServerTls;
use nectary_host::{ControlLimits, ControlMethods, ControlServer, PartHealth, PartStatus, RuntimeDirectory, Shutdown};
use nectary_nbd::{Export, ExportFigures, ExportTable, NetworkBlockServer, ServerFigures, ServerOptions};
use serde_json::{Value, json};

use crate::arguments::ExportArguments;
use crate::attach::{device_figures, with_donors, with_servers};
use crate::device::{close, engine, registry_listing};
use crate::exit::{CommandFailure, GOOD, USAGE, listening, opening};
use crate::live::cached::{ProcessCaches, with_unwritten};
use crate::live::methods::register;
use crate::output;

/// Exports devices until a signal arrives.
pub async fn run(arguments: &ExportArguments) -> Result<u8, CommandFailure> {
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => {
            let tls = ServerTls::load(certificate, key, arguments.tls_ca.as_deref())?;
            crate::cert::note_end(certificate);
            Some(tls)
        }
        _ => None,
    };
    let mut devices = Vec::new();
    let served = serve(arguments, tls, &shutdown, &mut devices).await;
    let closed = close(&devices).await;
    served?;
    closed?;
    log::write(LogLevel::Note, "export", format_args!("all connections are closed and the devices flushed"));
    Ok(GOOD)
}

/// Opens the devices, which are added to `devices` also if it fails later, and serves them until a signal arrives.
async fn serve(
    arguments: &ExportArguments,
    tls: Option<ServerTls>,
    shutdown: &Shutdown,
    devices: &mut Vec<SharedDevice>,
) -> Result<(), CommandFailure> {
    let caches = CacheList::default();
    let mut options = ServerOptions::default();
    (options.tls, options.insecure) = (tls, arguments.insecure);
    // Everything that can fail comes before the devices are opened, because that may take them from another process.
    RuntimeDirectory::open()?;
    let bound = NetworkBlockServer::bind(&arguments.nbd, options).map_err(listening)?;
    let exports = tokio::select! {
        exports = open(arguments, &caches, devices) => exports?,
        // A device may wait long for servers that do not answer.
        () = shutdown.requested() => return Ok(()),
    };
    let server = bound.serve(exports).map_err(listening)?;
    let control = start_control(&server, caches)?;
    output::text(&server.urls().iter().map(|url| format!("{url}\n")).collect::<String>())?;
    shutdown.requested().await;
    control.stop().await;
    Ok(server.stop().await.context("the last flush failed: what clients wrote since theirs may be lost")?)
}

async fn open(
    arguments: &ExportArguments,
    caches: &CacheList,
    devices: &mut Vec<SharedDevice>,
) -> Result<ExportTable, CommandFailure> {
    let options = OpenOptions {
        create_bytes: arguments.size,
        engine: engine(&arguments.engine),
        take_over: arguments.client.take_over,
        trust_remaining: arguments.client.trust_remaining,
        // A file that is to be created must be opened for writing.
        is_read_only: arguments.read_only && arguments.size.is_none(),
        pads_tail: true,
        ..OpenOptions::default()
    };
    let mut exports = Vec::new();
    for text in &arguments.devices {
        let (name, spec) = split_name(text);
        if name.is_empty() && arguments.devices.len() > 1 {
            let message = format!("{text}: it has no name, and there are several");
            return Err(CommandFailure::new(USAGE, message, "name each of them: NAME=SPEC"));
        }
        let registry = registry_listing(caches, &nectary_ram::device::OpenDevices::default());
        let device = registry.open(spec, &options).await.map_err(opening)?;
        devices.push(device.clone());
        exports.push(Export::new(name, "", device, arguments.read_only)?);
    }
    Ok(ExportTable::new(exports)?)
}

/// Splits `NAME=SPEC`; without a name, the name is empty. A name contains none of the characters that can precede `=`
/// in a SPEC.
fn split_name(text: &str) -> (&str, &str) {
    match text.split_once('=') {
        Some((name, spec)) if !name.is_empty() && !name.contains(['(', ':', '/', '"', ',']) => (name, spec),
        _ => ("", text),
    }
}

fn start_control(server: &NetworkBlockServer, caches: CacheList) -> Result<ControlServer, CommandFailure> {
    let name = server.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let first = server.addresses().first().map(ToString::to_string).unwrap_or_default();
    let (urls, figures) = (server.urls(), server.reader());
    let mut methods = ControlMethods::new();
    register(ProcessCaches::Devices(caches, name.clone()), &mut methods);
    methods.status(move || {
        let (server, exports) = figures();
        status(&name, &urls, &server, &exports)
    });
    let directory = RuntimeDirectory::open()?;
    // The path of a socket has a short limit, which a path with the export's name may exceed.
    let part = match directory.socket(&format!("export-{first}")) {
        Ok(_) => format!("export-{first}"),
        Err(_) => format!("export-{}", std::process::id()),
    };
    Ok(ControlServer::start(&directory, &part, methods, ControlLimits::default())?)
}

/// Returns the status of a server, as `nectary status` shows it.
fn status(name: &str, urls: &[String], server: &ServerFigures, exports: &[Arc<Export>]) -> PartStatus {
    let mut status = PartStatus::healthy("export", name);
    for export in exports {
        status = with_donors(status, &export.device().figures(), &export.device().spec());
        status = with_servers(status, &export.device().figures(), &export.device().spec());
        status = with_unwritten(status, &export.device().figures(), &export.device().spec());
        let ExportFigures { failed, .. } = export.figures();
        if failed > 0 {
            let what = format!("{}: {failed} requests failed", export.device().spec());
            status = status.with_problem(PartHealth::Degraded, what, "look at the device; a restart clears this count");
        }
    }
    if server.turned_away > 0 {
        let what = format!("{} clients were turned away, as {} are served", server.turned_away, server.connections);
        status = status.with_problem(PartHealth::Degraded, what, "let clients use fewer connections");
    }
    let list: Vec<Value> = exports.iter().map(|export| describe(export)).collect();
    status.with_detail(json!({ "urls": urls, "server": server, "exports": list }))
}

fn describe(export: &Export) -> Value {
    let geometry = export.device().geometry();
    let devices: Vec<Value> = export.device().figures().iter().map(device_figures).collect();
    json!({
        "name": export.name(),
        "spec": export.device().spec(),
        "size_bytes": export.device().exact_bytes(),
        "block_bytes": geometry.block_bytes,
        "read_only": export.is_read_only(),
        "requests": export.figures(),
        "devices": devices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_specs() {
        for (text, name, spec) in [
            ("memory:1G", "", "memory:1G"),
            ("a=memory:1G", "a", "memory:1G"),
            ("delay(memory:1G,read=12ms)", "", "delay(memory:1G,read=12ms)"),
            ("disk 1=delay(./x,read=1ms)", "disk 1", "delay(./x,read=1ms)"),
            ("nbd+unix:///a?socket=/b", "", "nbd+unix:///a?socket=/b"),
            ("./a=b", "", "./a=b"),
        ] {
            assert_eq!(split_name(text), (name, spec), "{text}");
        }
    }
}
