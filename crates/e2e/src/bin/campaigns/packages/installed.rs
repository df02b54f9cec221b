//! Makes the packages, and uses them as an operator does: `e2e-campaigns packages`.
//!
//! In a container of a fresh Debian, with a service manager of its own: the package is installed, the commands of
//! `docs/proxy.md` are run as they are written, the program is upgraded under load without a lost request, killed,
//! stopped by the watchdog, removed and installed again over its store. The rpm and the tarball are unpacked, and the
//! program runs from their files. The exit code is 77 where this machine cannot run it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use nectary_e2e::guard::{self, GuardedProcess, find_program};
use nectary_e2e::http::wait_listening;
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::packages::container::{self, DebianContainer};
use nectary_e2e::packages::page::{self, PageStep};
use nectary_e2e::packages::{self, exposure};
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::{ScratchFolder, free_address};
use nectary_e2e::volume::kills::FileLoopDevice;

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// The version to which the package is upgraded.
const NEXT: &str = "9.0.0";
/// The longest time of a script.
const LIMIT: Duration = Duration::from_secs(120);
/// The greatest exposure of services that run as an own user.
const EXPOSURE_MAX: f64 = 3.0;
/// The size of the disk. *Units*: bytes.
const DISK_BYTES: u64 = 300 << 20;
/// The origins of the page.
const ORIGINS: [&str; 2] = ["127.0.0.1:3000", "127.0.0.1:3001"];
/// How long the load of an upgrade lasts.
const LOAD: &str = "20s";
/// What the load requests.
const TARGET: &str = "/static/load.css?size=2000";
/// What makes curl find a site here and trust it, as on the page.
const CURL: &str = "curl -sS --cacert /root/pki/ca.pem --resolve www.example.org:443:127.0.0.1";

/// Makes the packages, installs, upgrades and removes them in a fresh system, and runs the commands of docs/proxy.md.
#[derive(Args)]
pub struct PackagesArguments {
    /// The folder with the packages and the system; given by the campaign to itself, in a network of its own
    #[arg(long, hide = true, value_name = "FOLDER")]
    inside: Option<PathBuf>,
}

/// Runs the campaign.
pub fn campaign(arguments: &PackagesArguments) -> Result<ExitCode> {
    if let Some(folder) = &arguments.inside {
        let mut problems = ProblemCounter::default();
        problems.extend(in_container(folder).err().map(|error| format!("{error:#}")));
        return Ok(problems.exit());
    }
    let missing =
        ["dh", "dpkg-buildpackage", "systemd-analyze", "wrk"].into_iter().find(|it| find_program(it).is_none());
    if let Some(reason) = missing.map(|it| format!("{it} is not installed")).or_else(container::lack) {
        return Ok(NotRunPolicy::IsAllowed.exit("packages", reason));
    }
    let scratch = ScratchFolder::new("packages")?;
    let (first, next) = (scratch.join("first"), scratch.join("next"));
    let has_rpm = find_program("rpmbuild").is_some() && find_program("rpm2cpio").is_some();
    let forms = ["deb", "tarball", "rpm"];
    packages::make(&forms[..if has_rpm { 3 } else { 2 }], packages::version(), &first)?;
    packages::make(&["deb"], NEXT, &next)?;
    let mut problems = ProblemCounter::default();
    problems.extend(units(&first.join("tree"), &scratch).err().map(|error| format!("units: {error:#}")));
    problems.extend(of_tarball(&first, &scratch).err().map(|error| format!("the tarball: {error:#}")));
    match has_rpm {
        true => problems.extend(of_rpm(&first, &scratch).err().map(|error| format!("the rpm: {error:#}"))),
        false => not_run("packages: rpmbuild and rpm2cpio are not installed (package rpm): no rpm is made"),
    }
    let started = Instant::now();
    if let Err(error) = container::make_root(&scratch.join("root"), &scratch.join("root.log")) {
        not_run(format!("packages: no fresh system can be made here: {error:#}"));
        return Ok(if problems.count() > 0 { problems.exit() } else { NotRunPolicy::IsAllowed.code() });
    }
    println!("a fresh system: {:.0} s", started.elapsed().as_secs_f64());
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.arg(std::env::current_exe()?).args(["packages", "--inside"]).arg(scratch.path());
    problems.extend((!command.status()?.success()).then_some("see above"));
    Ok(problems.exit())
}

/// Checks what the service manager says of the units.
fn units(tree: &Path, scratch: &ScratchFolder) -> Result<()> {
    let folder = tree.join("usr/lib/systemd/system");
    for name in ["nectary-proxy.service", "nectary-ram-donate.service", "nectary-volume-serve@.service"] {
        let found = exposure(&folder.join(name), &scratch.join(&format!("{name}.log")))?;
        println!("{name}: exposure {found}");
        ensure!(found < EXPOSURE_MAX, "{name}: {found}");
    }
    Ok(())
}

/// Unpacks the tarball, and runs the program from its files.
fn of_tarball(packages: &Path, scratch: &ScratchFolder) -> Result<()> {
    let archive = packages::file(packages, "nectary-", ".tar.gz")?;
    let unpacked = scratch.join("tarball");
    fs::create_dir(&unpacked)?;
    let mut command = Command::new("tar");
    command.arg("-C").arg(&unpacked).args(["--strip-components", "1", "-xzf"]).arg(&archive);
    succeeds("tar", command, scratch)?;
    ensure!(unpacked.join("INSTALL.md").is_file(), "INSTALL.md is missing");
    runs_from("tarball", &unpacked, scratch)
}

/// Lists and unpacks the rpm, and runs the program from its files.
fn of_rpm(packages: &Path, scratch: &ScratchFolder) -> Result<()> {
    let rpm = packages::file(packages, &format!("nectary-{}", packages::version()), ".rpm")?;
    let mut list = Command::new("rpm");
    list.args(["-qlp", "--nosignature"]).arg(&rpm);
    let files = succeeds("rpm", list, scratch)?;
    for name in ["/usr/bin/nectary", "/etc/nectary/proxy.toml", "/usr/lib/systemd/system/nectary-proxy.service"] {
        ensure!(files.lines().any(|line| line == name), "{name} is not in it:\n{files}");
    }
    let unpacked = scratch.join("rpm");
    fs::create_dir(&unpacked)?;
    let mut command = Command::new("sh");
    command.args(["-c", "rpm2cpio \"$1\" | cpio --quiet -idm", "sh"]).arg(&rpm).current_dir(&unpacked);
    succeeds("rpm2cpio", command, scratch)?;
    println!("rpm: {} files", files.lines().count());
    runs_from("rpm", &unpacked, scratch)
}

/// Runs the proxy of an unpacked tree, and gets one response from it.
fn runs_from(name: &str, tree: &Path, scratch: &ScratchFolder) -> Result<()> {
    let bytes = fs::metadata(tree.join("usr/bin/nectary"))?.len();
    println!("{name}: a program of {:.1} MB", bytes as f64 / 1e6);
    let (origin, address) = (DeterministicOrigin::start()?, free_address()?);
    let mut command = Command::new(tree.join("usr/bin/nectary"));
    command.args(["proxy", "--listen", &address.to_string(), "--origin", &origin.url(), "--size", "64M"]);
    command.args(["--memory", "32M", "--store"]).arg(scratch.join(&format!("{name}.store")));
    command.env("NECTARY_RUNTIME_DIR", scratch.join(&format!("{name}.run")));
    let mut process = GuardedProcess::spawn(name, command, &scratch.join(&format!("{name}.log")), None)?;
    wait_listening(address, LIMIT)?;
    let mut client = nectary_e2e::http::HttpConnection::new(address, LIMIT);
    let response = client.get("/a/1?size=1000")?;
    ensure!(response.status == 200 && response.body.len() == 1000, "status {}", response.status);
    process.signal(libc::SIGTERM);
    ensure!(process.wait(LIMIT)?.success(), "{}", process.log_tail());
    Ok(())
}

fn succeeds(name: &str, command: Command, scratch: &ScratchFolder) -> Result<String> {
    let (status, output) = guard::run(name, command, &scratch.join(&format!("{name}-run.log")), LIMIT)?;
    ensure!(status.success(), "{name} ended with {}: {output}", guard::describe(status));
    Ok(output)
}

/// What is done in the container.
fn in_container(folder: &Path) -> Result<()> {
    let root = folder.join("root");
    let put = |from: &Path, name: &str| fs::copy(from, root.join("root").join(name)).map(drop);
    put(&packages::file(&folder.join("first"), "nectary_", ".deb")?, "nectary.deb")?;
    put(&packages::file(&folder.join("next"), "nectary_", ".deb")?, "next.deb")?;
    let origins: Vec<DeterministicOrigin> = ORIGINS
        .iter()
        .map(|address| DeterministicOrigin::start_at(address.parse::<SocketAddr>()?))
        .collect::<Result<_>>()?;
    let image = folder.join("disk.img");
    fs::File::create(&image)?.set_len(DISK_BYTES)?;
    let disk = FileLoopDevice::of(&image.display().to_string())?;
    let container = DebianContainer::boot(&root, &disk.0, folder)?;
    let page = fs::read_to_string(packages::repository()?.join("docs/proxy.md"))?;
    let steps = page::steps(&page);
    for step in &steps {
        follow(&container, step).with_context(|| format!("docs/proxy.md:{}", step.line))?;
    }
    println!("docs/proxy.md: {} scripts", steps.len());
    verify(&container)?;
    upgrade(&container, &root, folder)?;
    is_watched(&container)?;
    is_killed(&container)?;
    other_services(&container)?;
    on_disk(&container)?;
    remove(&container, &origins)
}

/// Runs a script of the page, and compares its output.
fn follow(container: &DebianContainer, step: &PageStep) -> Result<()> {
    let output = container.must(&step.script, LIMIT)?;
    if let Some(shown) = &step.shown {
        let same = page::without_numbers(&output) == page::without_numbers(shown);
        ensure!(same, "{}printed\n{output}instead of\n{shown}", step.script);
    }
    Ok(())
}

/// Checks that the installed units are understood, that manual pages and completions are there, and that logs rotate.
fn verify(container: &DebianContainer) -> Result<()> {
    container.must(
        "test -z \"$(systemd-analyze verify --man=no nectary-proxy.service nectary-proxy.socket nectary-ram-donate.service \
         nectary-volume-serve@a.service nectary-volume-mount@a.service 2>&1 | grep -i nectary | tee /dev/stderr)\"\n\
         test \"$(stat -c %U:%a /var/lib/nectary)\" = nectary:750\n\
         test \"$(stat -c %U /proc/$(systemctl show -p MainPID --value nectary-proxy))\" = nectary\n\
         for name in nectary nectary-proxy nectary-volume-mount; do zcat /usr/share/man/man1/$name.1.gz | grep -q '^.SH'; done\n\
         test -s /usr/share/nectary/prometheus/alerts.yml && test -s /usr/share/nectary/grafana/proxy.json\n\
         bash -c '. /usr/share/bash-completion/completions/nectary && complete -p nectary' >/dev/null\n\
         logrotate --force /etc/logrotate.d/nectary\n\
         test -s /var/log/nectary/access.log.1\n\
         curl -s -o /dev/null http://127.0.0.1/\n",
        LIMIT,
    )?;
    // The proxy opens the log again when it gets the signal, which is after logrotate has sent it.
    container.must("until test -e /var/log/nectary/access.log; do sleep 0.1; done", LIMIT)?;
    Ok(())
}

/// Upgrades under load: no request fails, the configuration stays, and the store is full.
fn upgrade(container: &DebianContainer, root: &Path, folder: &Path) -> Result<()> {
    let url = format!("https://www.example.org{TARGET}");
    container.must(&format!("{CURL} -o /dev/null '{url}'; echo '# mine' >>/etc/nectary/proxy.toml"), LIMIT)?;
    let mut command = Command::new("wrk");
    command.args(["-t", "1", "-c", "16", "-d", LOAD, "--timeout", "15s", "-H", "Host: www.example.org"]);
    command.arg(format!("https://127.0.0.1{TARGET}"));
    let mut load = GuardedProcess::spawn("wrk", command, &folder.join("wrk.log"), None)?;
    let before = container.must("systemctl show -p MainPID --value nectary-proxy", LIMIT)?;
    for _ in 0..2 {
        container.must("systemctl restart nectary-proxy", LIMIT)?;
    }
    container.must("apt install ./next.deb", LIMIT)?;
    let after = container.must("systemctl show -p MainPID --value nectary-proxy", LIMIT)?;
    ensure!(before != after, "the service was not restarted");
    ensure!(load.try_status().is_none(), "the load ended before the upgrade did");
    ensure!(load.wait(LIMIT)?.success(), "{}", load.log_tail());
    let said = load.log_text();
    let of = |name: &str| said.lines().find(|line| line.contains(name)).map(str::trim).unwrap_or("none");
    println!("two restarts and an upgrade under load: {}; socket errors: {}", of("requests in"), of("Socket errors"));
    ensure!(of("Socket errors") == "none" && of("Non-2xx") == "none", "{said}");
    let version = container.must("dpkg-query -W -f '${Version}' nectary", LIMIT)?;
    ensure!(version.starts_with(NEXT), "version {version}");
    let config = fs::read_to_string(root.join("etc/nectary/proxy.toml"))?;
    ensure!(config.contains("# mine") && config.contains("shop.example.org"), "the configuration was replaced");
    hits(container, &url)
}

/// Checks that a URL is a hit.
fn hits(container: &DebianContainer, url: &str) -> Result<()> {
    let found = container.must(&format!("{CURL} -o /dev/null -w '%header{{cache-status}}' '{url}'"), LIMIT)?;
    ensure!(found.starts_with("nectary; hit"), "{url}: {found}");
    Ok(())
}

/// A process that hangs is replaced.
fn is_watched(container: &DebianContainer) -> Result<()> {
    container.must(
        "mkdir -p /run/systemd/system/nectary-proxy.service.d\n\
         printf '[Service]\\nWatchdogSec=2\\n' >/run/systemd/system/nectary-proxy.service.d/watchdog.conf\n\
         systemctl daemon-reload\n\
         systemctl restart nectary-proxy\n\
         before=$(systemctl show -p MainPID --value nectary-proxy)\n\
         kill -STOP $before\n\
         for turn in $(seq 300); do\n\
           now=$(systemctl show -p MainPID --value nectary-proxy)\n\
           if [ $now != 0 ] && [ $now != $before ] && systemctl is-active -q nectary-proxy; then exit 0; fi\n\
           sleep 0.1\n\
         done\n\
         systemctl status nectary-proxy; exit 1",
        LIMIT,
    )?;
    println!("a process that hangs is replaced");
    Ok(())
}

/// A process that is killed is started again, with a full store.
fn is_killed(container: &DebianContainer) -> Result<()> {
    container.must(
        "before=$(systemctl show -p MainPID --value nectary-proxy)\n\
         kill -KILL $before\n\
         until now=$(systemctl show -p MainPID --value nectary-proxy)\n\
           [ $now != 0 ] && [ $now != $before ] && systemctl is-active -q nectary-proxy; do sleep 0.1; done",
        LIMIT,
    )?;
    hits(container, &format!("https://www.example.org{TARGET}"))?;
    println!("a process that is killed is started again, with a full store");
    Ok(())
}

/// A donor, and a volume with its server and its mount, run as services and are shown by `nectary status`.
fn other_services(container: &DebianContainer) -> Result<()> {
    if !Path::new("/dev/fuse").exists() {
        not_run("packages: the services of volumes: there is no /dev/fuse");
        return Ok(());
    }
    container.must(
        "printf 'LISTEN=127.0.0.1:7070\nMEMORY=4M\n' >/etc/nectary/ram-donate.env\n\
         printf 'DISK=/var/lib/nectary-volumes/a.img\nLISTEN=unix:/run/nectary-volume-a/clients\n' >/etc/nectary/volume-serve-a.env\n\
         printf 'DISK=/var/lib/nectary-volumes/a.img\nSERVER=unix:/run/nectary-volume-a/clients\n' >/etc/nectary/volume-mount-srv-a.env\n\
         install -d -o nectary -g nectary /var/lib/nectary-volumes\n\
         runuser -u nectary -- nectary volume format /var/lib/nectary-volumes/a.img --size 1G\n\
         mkdir /srv/a\n\
         systemctl start nectary-ram-donate nectary-volume-serve@a\n\
         systemctl start nectary-volume-mount@srv-a\n\
         echo hello >/srv/a/file\n\
         test $(nectary status | grep -cE '^healthy +(donor|volume server|volume mount|proxy) ') = 4\n\
         systemctl stop nectary-volume-mount@srv-a\n\
         systemctl stop nectary-volume-serve@a nectary-ram-donate\n\
         test ! -e /srv/a/file\n\
         rm /var/lib/nectary-volumes/a.img",
        LIMIT,
    )?;
    println!("the services of donors and volumes run");
    Ok(())
}

/// With its drop-in the service has its store on a whole disk; without it, it may not open the disk.
fn on_disk(container: &DebianContainer) -> Result<()> {
    let disk = container::DISK;
    container.must(
        &format!(
            "chgrp disk {disk}; chmod 660 {disk}\n\
             cp /etc/nectary/proxy.toml .\n\
             sed -i 's#^device = .*#device = \"disk:{disk}\"#' /etc/nectary/proxy.toml\n\
             if systemctl restart nectary-proxy; then exit 1; fi\n\
             systemctl stop nectary-proxy; systemctl reset-failed nectary-proxy\n\
             install -D -m 644 /usr/share/nectary/drop-ins/raw-disks.conf -t /etc/systemd/system/nectary-proxy.service.d\n\
             sed -i 's#/dev/sdb rw#{disk} rw#' /etc/systemd/system/nectary-proxy.service.d/raw-disks.conf\n\
             systemctl daemon-reload\n\
             systemctl restart nectary-proxy\n\
             {CURL} -o /dev/null 'https://www.example.org{TARGET}'\n\
             systemctl restart nectary-proxy"
        ),
        LIMIT,
    )?;
    hits(container, &format!("https://www.example.org{TARGET}"))?;
    container.must(
        "cp proxy.toml /etc/nectary/proxy.toml\n\
         rm /etc/systemd/system/nectary-proxy.service.d/raw-disks.conf\n\
         systemctl daemon-reload\n\
         systemctl restart nectary-proxy",
        LIMIT,
    )?;
    println!("a store on a whole disk");
    Ok(())
}

/// Removal keeps the store and says where it is; what is installed again begins with it; a purge keeps it too.
fn remove(container: &DebianContainer, origins: &[DeterministicOrigin]) -> Result<()> {
    let said = container.must("apt remove -y nectary", LIMIT)?;
    ensure!(said.contains("the store is kept in /var/lib/nectary"), "{said}");
    container.must("test -s /var/lib/nectary/store; test -s /etc/nectary/proxy.toml; test ! -e /usr/bin/nectary; test ! -e /run/nectary-proxy", LIMIT)?;
    let asked: u64 = origins.iter().map(|origin| origin.count(TARGET).requests).sum();
    container.must("systemctl daemon-reload; apt install ./next.deb; systemctl is-active nectary-proxy", LIMIT)?;
    hits(container, &format!("https://www.example.org{TARGET}"))?;
    ensure!(origins.iter().map(|origin| origin.count(TARGET).requests).sum::<u64>() == asked, "it was fetched again");
    let said = container.must("apt purge -y nectary", LIMIT)?;
    ensure!(said.contains("the store is kept in /var/lib/nectary"), "{said}");
    container
        .must("test -s /var/lib/nectary/store; test ! -e /etc/nectary/proxy.toml; test ! -e /var/log/nectary", LIMIT)?;
    println!("removed, installed again over the store, and purged: the store is kept");
    Ok(())
}
