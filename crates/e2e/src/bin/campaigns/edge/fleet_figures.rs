//! Measures what sharing keys saves and costs: `e2e-campaigns fleet-figures --seed 7`.
//!
//! - **Origin requests**: a Zipf mix through four nodes that share the keys, against one proxy with the sum of their
//!   stores: at most 1.1 times as many.
//! - **Keys that move** as a node of four is lost, and comes back: at most a quarter and 2 %.
//! - **A hit in memory** at the owner, by processor time, against a proxy without `[fleet]`: at most 1.03 times as
//!   much, by the median of paired rounds. Proxies on processor 0, the load on processor 1. A hit on a copy of another
//!   node's object is printed beside.
//!
//! The exit code is 0 only if all of these are reached. It is 77 if this machine lacks etcd, wrk or a second processor.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nectary_e2e::bench;
use nectary_e2e::guard::{GuardedProcess, find_program};
use nectary_e2e::http::{HttpConnection, HttpResponse, wait_listening};
use nectary_e2e::load::wrk::{self, WrkSettings};
use nectary_e2e::nectary::certificates::ServerCertificates;
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::report::{ValueSpread, median, seed_or_new, write_json_line};
use nectary_e2e::rng::{SeededRng, Zipf};
use nectary_e2e::scratch::{ScratchFolder, free_address};
use serde_json::{Value, json};

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// The name of the site: what clients name as host, at every port.
const SITE: &str = "127.0.0.1";
/// Nodes that share the mix, and the size of the store and of the memory of each, in MiB.
const NODES: usize = 4;
const STORE_MIB: usize = 64;
const MEMORY_MIB: usize = 32;
/// The mix: objects, their length, and the exponent of the Zipf law. What 60,000 requests name is twice what the stores
/// hold, so that the ratio also tells how well the stores are used.
const MIX_OBJECTS: usize = 20_000;
const MIX_BYTES: u64 = 48 << 10;
const MIX_EXPONENT: f64 = 0.9;
/// What is wanted.
const ORIGIN_RATIO_MAX: f64 = 1.1;
const MOVED_MAX: f64 = 1.0 / NODES as f64 + 0.02;
const HIT_RATIO_MAX: f64 = 1.03;
/// The length of an object whose hits are measured, and the connections of the load.
const HIT_BYTES: u64 = 1024;
const CONNECTIONS: usize = 64;
/// The longest time of a start, of an answer, and until all nodes know each other.
const START_MAX: Duration = Duration::from_secs(30);
const ANSWER_MAX: Duration = Duration::from_secs(30);
const KNOWN_MAX: Duration = Duration::from_secs(60);

/// Measures what sharing keys saves and costs.
#[derive(Args)]
pub struct Arguments {
    /// The seed of the mix; a new one is drawn and printed by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Requests of the mix; 0 for none.
    #[arg(long, default_value_t = 60_000)]
    requests: usize,
    /// Keys whose owners are compared; 0 for none.
    #[arg(long, default_value_t = 8000)]
    keys: usize,
    /// Paired rounds of hits; 0 for none.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Length of each measurement of hits.
    #[arg(long, default_value_t = 1)]
    seconds: u64,
    /// Appends the results to this file, as one line of JSON.
    #[arg(long)]
    log: Option<PathBuf>,
}

/// Runs the campaign.
pub fn campaign(arguments: &Arguments) -> Result<ExitCode> {
    if find_program("etcd").is_none() || !bench::has_two_processors() {
        return Ok(NotRunPolicy::IsAllowed.exit("fleet-figures", "it needs etcd (etcd-server), wrk and two processors"));
    }
    let seed = seed_or_new(arguments.seed);
    println!("fleet-figures: seed {seed}, {}", bench::machine());
    let (mut problems, mut found) = (ProblemCounter::default(), json!({ "check": "fleet-figures", "seed": seed }));
    if arguments.requests > 0 || arguments.keys > 0 {
        let scratch = ScratchFolder::new("fleet-figures")?;
        let origin = DeterministicOrigin::start()?;
        let mut fleet = Fleet::start(&scratch, &origin, NODES, None)?;
        if arguments.requests > 0 {
            found["mix"] = mix(arguments.requests, seed, &fleet, &origin, &mut problems)?;
        }
        if arguments.keys > 0 {
            found["moved"] = moves(arguments.keys, &mut fleet, &mut problems)?;
        }
    }
    if arguments.rounds > 0 {
        found["hits"] = hits(arguments, &mut problems)?;
    }
    found["passed"] = json!(problems.count() == 0);
    if let Some(path) = &arguments.log {
        write_json_line(path, &found)?;
    }
    println!("{found}");
    Ok(problems.exit())
}

/// A member of etcd, and nodes that share keys.
struct Fleet {
    nodes: Vec<NectaryProxy>,
    commands: Vec<ProxyCommand>,
    admins: Vec<SocketAddr>,
    _etcd: GuardedProcess,
}

impl Fleet {
    /// Starts etcd and nodes, pinned to a processor or not, and waits until they know each other.
    fn start(scratch: &ScratchFolder, origin: &DeterministicOrigin, count: usize, cpu: Option<usize>) -> Result<Fleet> {
        let (client, peer) = (free_address()?, free_address()?);
        let mut command = Command::new(find_program("etcd").context("no program etcd")?);
        command.arg("--data-dir").arg(scratch.join("etcd"));
        for (name, address) in [
            ("--listen-client-urls", client),
            ("--advertise-client-urls", client),
            ("--listen-peer-urls", peer),
            ("--initial-advertise-peer-urls", peer),
        ] {
            command.arg(name).arg(format!("http://{address}"));
        }
        command.arg("--initial-cluster").arg(format!("default=http://{peer}"));
        let etcd = GuardedProcess::spawn("etcd", command, &scratch.join("etcd.log"), None)?;
        wait_listening(client, START_MAX).with_context(|| etcd.log_tail())?;
        // One certificate is enough for nodes that have the same address.
        let files = ServerCertificates::make_for_host(scratch.path(), SITE)?;
        let mut fleet = Fleet { nodes: Vec::new(), commands: Vec::new(), admins: Vec::new(), _etcd: etcd };
        for index in 0..count {
            let (admin, share) = (free_address()?, free_address()?);
            let ServerCertificates { ca, certificate, key } = &files;
            let text = format!(
                "[admin]\nlisten = [\"{admin}\"]\n[fleet]\nnode = \"n{index}\"\naddress = \"{share}\"\n\
                 listen = \"{share}\"\ncert = \"{}\"\nkey = \"{}\"\nca = \"{}\"\netcd = [\"http://{client}\"]\n",
                certificate.display(),
                key.display(),
                ca.display()
            );
            let folder = scratch.join(&format!("n{index}"));
            let command = proxy(&folder, origin, (STORE_MIB, MEMORY_MIB), &text, cpu.filter(|_| index == 0))?;
            fleet.nodes.push(command.start_with_file(&file_of(&folder))?);
            fleet.commands.push(command);
            fleet.admins.push(admin);
        }
        fleet.wait_known()?;
        Ok(fleet)
    }

    /// Waits until each node is a member, and knows all the others.
    fn wait_known(&self) -> Result<()> {
        let deadline = Instant::now() + KNOWN_MAX;
        loop {
            let seen: Vec<_> = self.nodes.iter().map(seen_by).collect();
            if seen.iter().all(|(state, count)| state == "member" && *count == self.nodes.len()) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "after {KNOWN_MAX:?} the nodes see {seen:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Purges everything at all nodes.
    fn purge_all(&self) -> Result<()> {
        let (admin, body) = (self.admins[0], r#"{"all":true,"wait":"applied"}"#);
        let length = body.len();
        let head = format!("POST /purge HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {length}\r\n\r\n{body}");
        let response = HttpConnection::new(admin, ANSWER_MAX).exchange(head.as_bytes(), "POST")?;
        ensure!(response.status == 200, "a purge of everything has status {}", response.status);
        Ok(())
    }
}

/// What a node says that it is, and the number of nodes that it knows.
fn seen_by(node: &NectaryProxy) -> (String, usize) {
    let status = node.control().and_then(|mut control| control.status()).unwrap_or_default();
    let fleet = &status["detail"]["fleet"];
    let state = fleet["state"].as_str().unwrap_or("silent").to_owned();
    (state, fleet["nodes"].as_array().map_or(0, Vec::len))
}

fn file_of(folder: &Path) -> PathBuf {
    folder.join("proxy.toml")
}

/// Writes the configuration of a proxy with one worker; the sizes are those of store and memory, in MiB.
fn proxy(
    folder: &Path,
    origin: &DeterministicOrigin,
    (store, memory): (usize, usize),
    more: &str,
    cpu: Option<usize>,
) -> Result<ProxyCommand> {
    std::fs::create_dir_all(folder)?;
    let command = ProxyCommand { cpu, ..ProxyCommand::new(folder, None)? };
    let text = format!(
        "[[listener]]\naddress = \"{}\"\n[server]\nworkers = 1\n[store]\ndevice = \"{}\"\nsize = \"{store}M\"\n\
         memory = \"{memory}M\"\n{more}[origins.o]\nservers = [\"{}\"]\n[[site]]\nnames = [\"{SITE}\"]\n\
         [[site.route]]\norigin = \"o\"\n",
        command.listen,
        command.store,
        origin.url()
    );
    std::fs::write(file_of(folder), text)?;
    Ok(command)
}

fn get(client: &mut HttpConnection, target: &str) -> Result<HttpResponse> {
    let response = client.get(target)?;
    ensure!(response.status == 200, "{target} has status {}", response.status);
    Ok(response)
}

/// Sends the same mix through a fleet and through one proxy with the sum of its stores.
fn mix(
    requests: usize,
    seed: u64,
    fleet: &Fleet,
    origin: &DeterministicOrigin,
    problems: &mut ProblemCounter,
) -> Result<Value> {
    let zipf = Zipf::new(MIX_OBJECTS, MIX_EXPONENT);
    let mut named = SeededRng::new(seed);
    let footprint = (0..requests)
        .map(|_| {
            let object = zipf.sample(&mut named);
            named.index(NODES);
            object
        })
        .collect::<HashSet<_>>()
        .len() as u64
        * MIX_BYTES;
    let stores = (NODES * STORE_MIB) as u64 * (1 << 20);
    let run = |proxies: &[NectaryProxy], origin: &DeterministicOrigin| -> Result<(u64, f64)> {
        let (mut rng, begun, before) = (SeededRng::new(seed), Instant::now(), origin.requests());
        let mut clients: Vec<_> = proxies.iter().map(NectaryProxy::client).collect();
        for _ in 0..requests {
            // The same objects in the same order, whatever the number of proxies.
            let (object, place) = (zipf.sample(&mut rng), rng.index(NODES));
            let count = clients.len();
            get(&mut clients[place % count], &format!("/mix/{object}?size={MIX_BYTES}"))?;
        }
        Ok((origin.requests() - before, begun.elapsed().as_secs_f64()))
    };
    let (shared, shared_s) = run(&fleet.nodes, origin)?;
    let scratch = ScratchFolder::new("fleet-figures-one")?;
    let own_origin = DeterministicOrigin::start()?;
    let command = proxy(scratch.path(), &own_origin, (NODES * STORE_MIB, NODES * MEMORY_MIB), "", None)?;
    let one = [command.start_with_file(&file_of(scratch.path()))?];
    let (alone, alone_s) = run(&one, &own_origin)?;
    let ratio = shared as f64 / alone as f64;
    let verdict = if ratio <= ORIGIN_RATIO_MAX { "good" } else { "SHORT" };
    println!(
        "{requests} requests for {MIX_OBJECTS} objects of {MIX_BYTES} B (Zipf {MIX_EXPONENT}), {:.1} times the stores: \
         {NODES} nodes of {STORE_MIB} MiB ask the origin {shared} times ({shared_s:.0} s), one of {} MiB {alone} times \
         ({alone_s:.0} s): {ratio:.3}, at most {ORIGIN_RATIO_MAX} wanted: {verdict}",
        footprint as f64 / stores as f64,
        NODES * STORE_MIB
    );
    if ratio > ORIGIN_RATIO_MAX {
        problems.add(format!("the fleet asks the origin {ratio:.3} times as often, at most {ORIGIN_RATIO_MAX} wanted"));
    }
    Ok(
        json!({ "requests": requests, "footprint": footprint, "stores": stores, "fleet": shared, "one": alone, "ratio": ratio }),
    )
}

/// Loses a node and gets it back; counts the keys that have another owner afterwards.
fn moves(keys: usize, fleet: &mut Fleet, problems: &mut ProblemCounter) -> Result<Value> {
    let all = owners(keys, fleet)?;
    let mut lost = fleet.nodes.pop().context("no node")?;
    lost.terminate(START_MAX)?;
    fleet.wait_known()?;
    let fewer = owners(keys, fleet)?;
    let command = &fleet.commands[NODES - 1];
    fleet.nodes.push(command.start_with_file(&file_of(&command.folder))?);
    fleet.wait_known()?;
    let again = owners(keys, fleet)?;
    let name = format!("n{}", NODES - 1);
    let mut values = json!({ "keys": keys });
    for (what, before, after) in [("lost", &all, &fewer), ("added", &fewer, &again)] {
        let pairs = || before.iter().zip(after).filter(|(before, after)| before != after);
        let moved = pairs().count() as f64 / keys as f64;
        let others = pairs().filter(|(before, after)| **before != name && **after != name).count();
        let verdict = if moved <= MOVED_MAX { "good" } else { "SHORT" };
        println!(
            "a node of {NODES} is {what}: {:.2} % of {keys} keys move, at most {:.2} % wanted: {verdict}; {others} \
             between others",
            100.0 * moved,
            100.0 * MOVED_MAX
        );
        if moved > MOVED_MAX || moved == 0.0 {
            problems.add(format!("{:.2} % of the keys move as a node is {what}", 100.0 * moved));
        }
        values[what] = json!({ "moved": moved, "between_others": others });
    }
    Ok(values)
}

/// The owner of each key, as the first node sees it: who answers for it when nobody has anything stored.
fn owners(keys: usize, fleet: &Fleet) -> Result<Vec<String>> {
    fleet.purge_all()?;
    let mut client = fleet.nodes[0].client();
    (0..keys).map(|key| Ok(owner_in(&get(&mut client, &format!("/key/{key}?size=200"))?))).collect()
}

/// The node that has answered the first node, or that one.
fn owner_in(response: &HttpResponse) -> String {
    let of = |value: &str| Some(value.split_once("fleet=\"")?.1.split('"').next()?.to_owned());
    let named = response.headers.iter().filter(|(name, _)| name == "cache-status");
    named.filter_map(|(_, value)| of(value)).next().unwrap_or_else(|| "n0".to_owned())
}

/// Measures hits in memory, in paired rounds.
fn hits(arguments: &Arguments, problems: &mut ProblemCounter) -> Result<Value> {
    let scratch = ScratchFolder::in_memory("fleet-hits")?;
    let origin = DeterministicOrigin::start()?;
    let fleet = Fleet::start(&scratch, &origin, 2, Some(0))?;
    let mut plain = Vec::new();
    for name in ["plain", "again"] {
        let folder = scratch.join(name);
        let command = proxy(&folder, &origin, (STORE_MIB, MEMORY_MIB), "", Some(0))?;
        plain.push(command.start_with_file(&file_of(&folder))?);
    }
    let (own, copy) = (hit_target(&fleet.nodes[0], "n0")?, hit_target(&fleet.nodes[0], "n1")?);
    for proxy in &plain {
        let mut client = proxy.client();
        get(&mut client, &own)?;
        ensure!(get(&mut client, &own)?.is_hit(), "{own} is not stored");
    }
    let asked_before = origin.requests();
    let contestants = [(&plain[0], &own), (&plain[1], &own), (&fleet.nodes[0], &own), (&fleet.nodes[0], &copy)];
    let mut costs: [Vec<f64>; 4] = Default::default();
    for round in 0..=arguments.rounds {
        let mut order = [0, 1, 2, 3];
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (proxy, target) = contestants[index];
            let cost = cost_of_a_hit(proxy, target, arguments.seconds, &scratch)?;
            // The first round warms all of them up.
            if round > 0 {
                costs[index].push(cost);
            }
        }
    }
    let asked = origin.requests() - asked_before;
    ensure!(asked == 0, "{asked} requests reached the origin");
    let ratios =
        |index: usize| -> Vec<f64> { costs[index].iter().zip(&costs[0]).map(|(it, plain)| it / plain).collect() };
    let (noise, owner, of_copy) = (ratios(1), ratios(2), ratios(3));
    let [ratio, low, high] = interval(&owner);
    let verdict = if ratio <= HIT_RATIO_MAX { "good" } else { "SHORT" };
    println!(
        "a hit in memory takes {:.0} ns of processor time; as the owner in a fleet {ratio:.3} times as much \
         ({low:.3}-{high:.3}), at most {HIT_RATIO_MAX} wanted: {verdict}; on a copy {:.3}; a second proxy without a \
         fleet {:.3} ({} rounds)",
        median(&costs[0]),
        median(&of_copy),
        ValueSpread::of(&noise).median,
        arguments.rounds
    );
    if ratio > HIT_RATIO_MAX {
        problems.add(format!("a hit of the owner costs {ratio:.3} times as much, at most {HIT_RATIO_MAX} wanted"));
    }
    Ok(json!({
        "plain_ns": median(&costs[0]), "owner": ratio, "owner_low": low, "owner_high": high, "copy": median(&of_copy),
        "noise": median(&noise), "rounds": arguments.rounds,
    }))
}

/// The target of an object of which this node has a hit, and whose owner is the node of this name.
fn hit_target(node: &NectaryProxy, owner: &str) -> Result<String> {
    let mut client = node.client();
    for number in 0..100 {
        let target = format!("/hit/{number}?size={HIT_BYTES}");
        if owner_in(&get(&mut client, &target)?) == owner {
            let again = get(&mut client, &target)?;
            ensure!(again.is_hit(), "{target} of {owner} is not a hit: {}", again.cache_status());
            return Ok(target);
        }
    }
    bail!("100 keys, and none is {owner}'s")
}

/// The processor time of a request under load. *Units*: nanoseconds.
fn cost_of_a_hit(proxy: &NectaryProxy, target: &str, seconds: u64, scratch: &ScratchFolder) -> Result<f64> {
    let targets = scratch.join("targets");
    wrk::write_targets(&targets, std::iter::once(target.to_owned()))?;
    let duration = Duration::from_secs(seconds);
    let load =
        WrkSettings { address: proxy.listen, targets, threads: 1, connections: CONNECTIONS, duration, cpu: Some(1) };
    let before = proxy.process.cpu_ns();
    let measured = wrk::run(&load, scratch.path())?;
    ensure!(measured.errors == 0 && measured.requests > 0, "{target}: {measured:?}");
    Ok((proxy.process.cpu_ns() - before) as f64 / measured.requests as f64)
}

/// The median, and the interval that has that of all rounds to come with a probability of 95 %, about.
fn interval(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let below = ((count - 1.96 * count.sqrt()) / 2.0).max(0.0) as usize;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    [median(values), at(below), at(sorted.len().saturating_sub(below + 1))]
}
