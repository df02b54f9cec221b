//! The configuration file of a proxy: reading it, checking what it refers to, and its values as options.
//!
//! Owns: that a file and a command line with the same meaning start the same. Leaves to others: the file's syntax
//! (`nectary-config`), the meaning of its sites and origins (`nectary-proxy`).

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use nectary_block::{DeviceSpec, SpecForm};
use nectary_config::{
    ConfigProblem, LocatedValue, OriginConfig, ProxyConfig, ServerScheme, Setting, SourcePosition, StoreConfig,
};
use nectary_host::log::{self, LogLevel};
use nectary_proxy::NameFiles;
use nectary_store::{AdmitRule, ClusterRead, WriteBudget};

use crate::arguments::{DeviceIoEngine, NectaryArguments, NectaryCommand, ProxyArguments};
use crate::exit::{CommandFailure, FAILED, GOOD, USAGE};
use crate::output;

/// The longest time that the check of a file waits for the address of a name.
const LOOK_UP_TIME_MAX: Duration = Duration::from_secs(5);

/// The most problems of a file that are shown.
const PROBLEMS_SHOWN_MAX: usize = 10;

/// Describes the first problems of a file, and says how many more there are.
fn shown(problems: &[ConfigProblem]) -> String {
    let mut lines: Vec<String> = problems.iter().take(PROBLEMS_SHOWN_MAX).map(ToString::to_string).collect();
    if problems.len() > PROBLEMS_SHOWN_MAX {
        lines.push(format!("and {} more", problems.len() - PROBLEMS_SHOWN_MAX));
    }
    lines.join("\n")
}

/// Reads a file and writes its warnings to the log. *Errors*: the first problems of the file, in one text.
pub fn read(path: &Path) -> Result<Arc<ProxyConfig>, String> {
    match ProxyConfig::read(path) {
        Ok((config, warnings)) => {
            for warning in &warnings {
                let place = format!("{}:{}", config.source.name(), warning.place());
                let help = warning.help().map(|help| format!("; {help}")).unwrap_or_default();
                log::write(LogLevel::Warning, "proxy", format_args!("{place}: {}{help}", warning.message()));
            }
            Ok(Arc::new(config))
        }
        Err(problems) => Err(shown(&problems)),
    }
}

/// The options that a file describes. *Errors*: what is wrong with the file, and what this version does not do.
pub fn options_of(path: &Path) -> Result<ProxyArguments, CommandFailure> {
    let wrong =
        |what: String| CommandFailure::new(USAGE, what, "`nectary proxy --check-config --config FILE` checks a file");
    let config = read(path).map_err(wrong)?;
    nectary_proxy::check_config(&config).map_err(|problems| wrong(shown(&problems.0)))?;
    arguments_of(config)
}

/// Checks a file and what it refers to. *Returns*: the exit code.
pub async fn check(path: &Path) -> Result<u8, CommandFailure> {
    let arguments = options_of(path)?;
    let Some(config) = &arguments.file.read else { return Ok(FAILED) };
    for origin in &config.origins {
        look_up_servers(config, origin).await;
    }
    if let (Some(acme), Ok(options)) = (&config.tls.acme, nectary_proxy::options_of(config))
        && let Some(orders) = &options.acme
    {
        let place = acme.state.as_ref().map_or(acme.place, |state| state.place);
        let message = |what: String| format!("{}:{place}: `state`: {what}", config.source.name());
        match nectary_proxy::check_acme_state(orders) {
            Ok(None) => {}
            Ok(Some(what)) => log::write(LogLevel::Warning, "proxy", format_args!("{}", message(what))),
            Err(what) => return Err(CommandFailure::new(USAGE, message(what), "name another directory")),
        }
    }
    let paths = config.log.access.iter().filter_map(|target| match &target.value {
        nectary_config::LogTarget::File(file) => Some((target.place, file)),
        _ => None,
    });
    for (place, file) in paths {
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            let message = format!("{}:{place}: there is no directory {}", config.source.name(), directory.display());
            return Err(CommandFailure::new(USAGE, message, "make it, or name another file"));
        }
    }
    let (sites, origins) = (config.sites.len(), config.origins.len());
    output::text(&format!("{}: good: {sites} sites, {origins} origins\n", path.display()))?;
    Ok(GOOD)
}

/// Warns if a server of an origin cannot be looked up, or its records name none.
async fn look_up_servers(config: &ProxyConfig, origin: &OriginConfig) {
    let warn = |place: SourcePosition, what: &str, reason: &str| {
        let file = config.source.name();
        log::write(LogLevel::Warning, "proxy", format_args!("{file}:{place}: cannot look up {what}: {reason}"));
    };
    for server in &origin.servers {
        let url = &server.url;
        if url.scheme == ServerScheme::Unix {
            continue;
        }
        let look_up = async {
            let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
            found.map(|mut found| found.next().is_some())
        };
        let reason = match tokio::time::timeout(LOOK_UP_TIME_MAX, look_up).await {
            Ok(Ok(true)) => continue,
            Ok(Ok(false)) => "it has no address".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "nothing answers".to_owned(),
        };
        warn(url.place, &url.host, &reason);
    }
    if let Some(srv) = &origin.srv {
        let name = srv.value.to_string();
        match nectary_proxy::count_service_servers(NameFiles::default(), &name).await {
            Ok((_, None)) => {}
            Ok((_, Some(reason))) => warn(srv.place, &format!("all servers of {name}"), &reason),
            Err(reason) => warn(srv.place, &name, &reason),
        }
    }
}

/// The options with the values of a file. What the file does not say has its default.
fn arguments_of(config: Arc<ProxyConfig>) -> Result<ProxyArguments, CommandFailure> {
    let bare = ["nectary", "proxy", "--listen", "127.0.0.1:0", "--store", "memory:1G"];
    let parsed = NectaryArguments::try_parse_from(bare).map(|arguments| arguments.command);
    let Ok(NectaryCommand::Proxy(mut arguments)) = parsed else {
        return Err(CommandFailure::new(FAILED, "the options have no defaults".to_owned(), "report this"));
    };
    let serves = config.listeners.iter().filter(|it| !it.redirect_to_https.as_ref().is_some_and(|on| on.value));
    arguments.listen = serves.map(|listener| listener.address.value.clone()).collect();
    set(&mut arguments.workers, &config.server.workers.map(some));
    for spec in std::iter::once(&config.store.device).chain(&config.store.spans) {
        check_spec(config.source.name(), spec)?;
    }
    store(&mut arguments, &config.store)?;
    let limits = &mut arguments.limits;
    set(&mut limits.connections_max, &config.limits.connections_max);
    set(&mut limits.drain, &config.limits.drain);
    arguments.file.read = Some(config);
    Ok(arguments)
}

/// Checks the form of a device's SPEC; nothing is opened. *Errors*: its mistake, with the place in the file.
fn check_spec(file: &str, spec: &LocatedValue<String>) -> Result<(), CommandFailure> {
    let what = match DeviceSpec::parse(&spec.value) {
        Err(error) => error.to_string(),
        Ok(parsed)
            if matches!(parsed.form, SpecForm::Text(_)) && parsed.scheme().is_none() && parsed.path().is_none() =>
        {
            format!("`{0}` is neither a path nor a device; a path has a slash: `./{0}`", spec.value)
        }
        Ok(_) => return Ok(()),
    };
    Err(CommandFailure::new(
        USAGE,
        format!("{file}:{}: {what}", spec.place),
        "docs/devices.md says how devices are named",
    ))
}

/// A value in the form of an option that may be absent.
fn some<T>(found: LocatedValue<T>) -> LocatedValue<Option<T>> {
    LocatedValue::new(Some(found.value), found.place)
}

fn set<T: Clone>(option: &mut T, setting: &Setting<T>) {
    if let Some(found) = setting {
        *option = found.value.clone();
    }
}

/// The options of the store. *Errors*: values that it does not take.
fn store(arguments: &mut ProxyArguments, config: &StoreConfig) -> Result<(), CommandFailure> {
    arguments.store = Some(config.device.value.clone());
    arguments.spans.spans = config.spans.iter().map(|spec| spec.value.clone()).collect();
    set(&mut arguments.forget_if_spans_missing, &config.forget_if_spans_missing);
    set(&mut arguments.size, &config.size_bytes.map(some));
    set(&mut arguments.memory, &config.memory_bytes.map(some));
    set(&mut arguments.disk_deadline, &config.disk_deadline);
    set(&mut arguments.reinsert, &config.reinsert_percent);
    set(&mut arguments.rewrite, &config.rewrite_percent);
    set(&mut arguments.cluster_size, &config.cluster_size_bytes);
    set(&mut arguments.admission.admit_bytes_min, &config.admit_bytes_min.map(some));
    set(&mut arguments.admission.admit_bytes_max, &config.admit_bytes_max.map(some));
    if let Some(engine) = &config.io {
        arguments.engine.io = match engine.value {
            nectary_config::StoreIoEngine::Auto => DeviceIoEngine::Auto,
            nectary_config::StoreIoEngine::Uring => DeviceIoEngine::Uring,
            nectary_config::StoreIoEngine::Posix => DeviceIoEngine::Posix,
        };
    }
    if let Some(rule) = &config.admit {
        arguments.admission.admit = match rule.value {
            nectary_config::AdmitRule::All => AdmitRule::All,
            nectary_config::AdmitRule::SecondRequest => AdmitRule::SecondRequest,
        };
    }
    if let Some(read) = &config.cluster_read {
        arguments.cluster_read = match read.value {
            nectary_config::ClusterRead::Auto => ClusterRead::Auto,
            nectary_config::ClusterRead::Cluster => ClusterRead::Cluster,
            nectary_config::ClusterRead::Object => ClusterRead::Object,
        };
    }
    if let Some(budget) = &config.write_budget {
        let refused =
            |error: String| CommandFailure::new(USAGE, format!("`write-budget`: {error}"), "write it as 50G/day");
        arguments.admission.write_budget = Some(WriteBudget::from_str(&budget.value.to_string()).map_err(refused)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_spec_form_is_checked() {
        let check =
            |spec: &str| check_spec("f", &LocatedValue::nowhere(spec.to_owned())).map_err(|error| error.message());
        for good in ["./cache", "/dev/sdb", "memory:1G", "disk:/dev/sdb"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["cache", "stats(memory:1G", ""] {
            assert!(check(bad).is_err_and(|error| error.starts_with("f:")), "{bad}");
        }
    }
}
