//! A run: three hosts with programs, a server, and what is lost meanwhile.
//!
//! Owns: the lives of servers, hosts and sessions, and the choice of losses. Promises: a session whose host was not cut
//! off for long is never ended. Leaves to others: the calls (`program`), what may be lost (`history`).

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::{Recorder, SharedDevice};
use nectary_volume::client::{ClientOptions, ServerAddress, VolumeClient};
use nectary_volume::journal::read;
use nectary_volume::metadata;
use nectary_volume::server::{MetadataServer, ServerOptions};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};

use super::board::NamesBoard;
use super::coverage::{RequiredEvent, VolumeNamesCoverage};
use super::kernel::{KernelModel, NotifiedKernel};
use super::mount::SimulatedMount;
use super::network::FrameNetwork;
use super::program::{NamesProgram, unstored};
use crate::late::{DetachedFilter, LateFilter, OperationDelays, UnderWay};
use crate::random::SimulationRandom;
use crate::switch::{SwitchFilter, SwitchHandle};
use crate::volume_clients::world::VOLUME;

/// The number of hosts.
pub const HOSTS: usize = 3;
/// The number of programs of a host.
const PROGRAMS: usize = 2;
/// In how many of the runs in which the server does everything a scene follows the programs. *Units*: percent.
const SCENES_PERCENT: u64 = 60;
/// The longest run. *Units*: virtual time.
const LIMIT: Duration = Duration::from_secs(600);
/// A host that is cut off for longer may lose its session. *Units*: milliseconds.
const CUT_MS_MAX: u64 = 3000;
/// The time after the begin of a cut at which programs that rest go on without a lease. *Units*: milliseconds.
const UNLEASED_MS: (u64, u64) = (5700, 8000);
/// The time in which calls are answered, and durable.
pub const SETTLED: Duration = Duration::from_millis(400);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process's path to the disk.
struct NamesDiskPath {
    device: SharedDevice,
    delays: OperationDelays,
    off: SwitchHandle,
    under_way: UnderWay,
}

/// A host.
struct ProgramHost {
    mount: Arc<SimulatedMount>,
    network: Arc<FrameNetwork>,
    way: NamesDiskPath,
    tasks: Vec<AbortHandle>,
    programs: Vec<JoinHandle<()>>,
    /// Whether its session may be ended.
    is_excused: Arc<Mutex<bool>>,
}

/// A run.
pub struct VolumeNamesWorld {
    pub board: Arc<NamesBoard>,
    /// Whether hosts make and remove names themselves.
    are_names_local: bool,
    disk: SharedDevice,
    recorder: Option<Recorder>,
    server: Mutex<Option<(MetadataServer, NamesDiskPath)>>,
    /// The path of the present server's socket.
    at: Arc<Mutex<PathBuf>>,
    seeds: AtomicU64,
    programs: AtomicU64,
    hosts: Mutex<Vec<Option<ProgramHost>>>,
    pub coverage: Mutex<VolumeNamesCoverage>,
}

impl VolumeNamesWorld {
    /// Makes the world of a seed, on a disk whose writes are recorded or not.
    pub fn new(
        seed: u64,
        disk: SharedDevice,
        board: Arc<NamesBoard>,
        recorder: Option<Recorder>,
    ) -> Arc<VolumeNamesWorld> {
        Arc::new(VolumeNamesWorld {
            are_names_local: board.are_names_local,
            board,
            disk,
            recorder,
            server: Mutex::default(),
            at: Arc::default(),
            seeds: AtomicU64::new(seed << 16),
            programs: AtomicU64::new(0),
            hosts: Mutex::new((0..HOSTS).map(|_| None).collect()),
            coverage: Mutex::default(),
        })
    }

    /// Runs everything to its end.
    ///
    /// *Errors*: what went wrong.
    pub async fn run(self: &Arc<VolumeNamesWorld>, seed: u64) -> Result<(), String> {
        let done = timeout(LIMIT, self.live(&mut SimulationRandom::new(seed))).await;
        done.unwrap_or_else(|_| Err(format!("it does not end within {LIMIT:?}")))
    }

    /// Looks at everything that a crash has left, and uses it.
    ///
    /// *Errors*: what went wrong.
    pub async fn use_after_crash(self: &Arc<VolumeNamesWorld>) -> Result<(), String> {
        let used = timeout(LIMIT, self.use_it()).await;
        used.unwrap_or_else(|_| Err(format!("its use does not end within {LIMIT:?}")))
    }

    async fn use_it(self: &Arc<VolumeNamesWorld>) -> Result<(), String> {
        self.serve().await?;
        self.start_host(0).await?;
        self.look_at_all().await;
        let mount = lock(&self.hosts)[0].as_ref().map(|host| host.mount.clone());
        if let Some(mount) = mount {
            NamesProgram::new(self.board.clone(), mount, 0, self.seed()).use_it().await;
        }
        self.finish().await
    }

    /// Counts an event.
    pub fn met(&self, event: RequiredEvent) {
        lock(&self.coverage).met(event);
    }

    /// Returns a number that no earlier call returned.
    fn seed(&self) -> u64 {
        self.seeds.fetch_add(1, Ordering::Relaxed)
    }

    fn way(&self) -> NamesDiskPath {
        let (under_way, off) = (UnderWay::default(), SwitchHandle::default());
        let delays = OperationDelays::short(self.seed());
        let late = LateFilter::by(self.disk.clone(), delays.clone(), &under_way);
        let late: SharedDevice = Arc::new(late);
        let recorded = self.recorder.as_ref().map_or(late.clone(), |recorder| recorder.wrap(late));
        let owned = Arc::new(DetachedFilter::new(recorded, &under_way));
        NamesDiskPath { device: Arc::new(SwitchFilter::new(owned, &off)), delays, off, under_way }
    }

    /// Starts a server.
    pub async fn serve(&self) -> Result<(), String> {
        let (way, socket) = (self.way(), PathBuf::from(format!("server-{}", self.seed())));
        let options = ServerOptions {
            listen: vec![ServerAddress::Unix(socket.clone())],
            tls: None,
            number: 0,
            host: "server".to_owned(),
            previous_gone: true,
            said_gone: Vec::new(),
        };
        let server =
            MetadataServer::start(way.device.clone(), options).await.map_err(|error| format!("a server: {error}"))?;
        self.board.tell(|| "a server begins".to_owned());
        *lock(&self.at) = socket;
        *lock(&self.server) = Some((server, way));
        Ok(())
    }

    /// Makes the disk of the present server slow.
    pub fn slow_down(&self, added_ms: u64) {
        if let Some((_, way)) = &*lock(&self.server) {
            way.delays.add_ms(added_ms);
        }
    }

    /// Loses the server.
    pub async fn lose_server(&self) {
        let lost = lock(&self.server).take();
        if let Some((server, way)) = lost {
            self.board.tell(|| "the server is lost".to_owned());
            self.board.history(|history| history.crashed());
            way.off.set(true);
            drop(server);
            way.under_way.settle(Some(self.seed())).await;
        }
    }

    async fn stop_server(&self) -> Result<(), String> {
        let server = lock(&self.server).take();
        match server {
            Some((server, _)) => server.stop().await.map_err(|error| format!("the end of a server: {error}")),
            None => Ok(()),
        }
    }

    fn options(&self, host: usize, path: PathBuf) -> ClientOptions {
        let servers = vec![ServerAddress::Unix(path)];
        let host = format!("host{host}");
        ClientOptions {
            servers,
            tls: None,
            volume: VOLUME,
            host,
            kind: 1,
            are_names_synced: false,
            are_names_local: self.are_names_local,
        }
    }

    /// Starts a host.
    pub async fn start_host(self: &Arc<VolumeNamesWorld>, host: usize) -> Result<(), String> {
        let (way, near) = (self.way(), PathBuf::from(format!("host{host}-{}", self.seed())));
        let (network, accepting) = FrameNetwork::start(self.seed(), near.clone(), self.at.clone());
        let kernel = KernelModel::new(self.seed());
        let options = self.options(host, near);
        let client = loop {
            match VolumeClient::connect(way.device.clone(), options.clone(), Arc::new(NotifiedKernel(kernel.clone())))
                .await
            {
                Ok(client) => break client,
                Err(error) if error.is_end() => return Err(format!("a session does not begin: {error}")),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        };
        let session = self.board.history(|history| history.session());
        self.board.tell(|| format!("host {host} begins session {session}"));
        let mount = Arc::new(SimulatedMount::new(kernel, client, session));
        let is_excused = Arc::new(Mutex::new(false));
        let keeper =
            tokio::spawn(self.clone().keep(host, mount.clone(), (way.device.clone(), options), is_excused.clone()));
        let tasks = vec![accepting.abort_handle(), keeper.abort_handle()];
        let started = ProgramHost { mount, network, way, tasks, programs: Vec::new(), is_excused };
        lock(&self.hosts)[host] = Some(started);
        Ok(())
    }

    /// Begins the next session of a mount whenever one was ended.
    async fn keep(
        self: Arc<VolumeNamesWorld>,
        host: usize,
        mount: Arc<SimulatedMount>,
        (device, options): (SharedDevice, ClientOptions),
        is_excused: Arc<Mutex<bool>>,
    ) {
        loop {
            let (client, session) = mount.session();
            let reason = client.over().await;
            let lost = client.figures().lost;
            self.note_local(&client);
            self.board
                .tell(|| format!("session {session} of host {host} is over, {lost} changes may be lost: {reason}"));
            self.board.history(|history| {
                history.ended(session, lost);
                if !*lock(&is_excused) {
                    history.is_broken(format!("session {session} of host {host} was ended: {reason}"));
                }
            });
            self.met(RequiredEvent::SessionEnded);
            client.stop();
            client.drop_pages().await;
            let next = loop {
                let kernel = Arc::new(NotifiedKernel(mount.kernel.clone()));
                match VolumeClient::connect(device.clone(), options.clone(), kernel).await {
                    Ok(client) => break client,
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            };
            let session = self.board.history(|history| history.session());
            self.board.tell(|| format!("host {host} begins session {session}"));
            mount.set_session(next, session);
        }
    }

    fn start_programs(&self, host: usize, calls: u64) {
        let mut hosts = lock(&self.hosts);
        let Some(started) = &mut hosts[host] else { return };
        for _ in 0..PROGRAMS {
            let number = self.programs.fetch_add(1, Ordering::Relaxed);
            let program = NamesProgram::new(self.board.clone(), started.mount.clone(), number, self.seed());
            let running = match self.are_names_local {
                true => tokio::spawn(program.run_at_home(calls)),
                false => tokio::spawn(program.run(calls)),
            };
            started.programs.push(running);
        }
    }

    /// Notes how many operations a session has done itself.
    fn note_local(&self, client: &VolumeClient) {
        lock(&self.coverage).add_local(client.figures().local);
    }

    /// Loses a host. `is_all_lost`: also what it has sent and did not arrive.
    pub async fn kill(&self, host: usize, is_all_lost: bool) {
        let Some(lost) = lock(&self.hosts)[host].take() else { return };
        let (client, session) = lost.mount.session();
        self.note_local(&client);
        let unstored = unstored(&client);
        self.board.tell(|| format!("host {host} is lost, with session {session} and {unstored} changes"));
        self.board.history(|history| history.ended(session, unstored));
        lost.network.break_all(is_all_lost);
        lost.way.off.set(true);
        lost.programs.iter().for_each(JoinHandle::abort);
        lost.tasks.iter().for_each(AbortHandle::abort);
        client.stop();
        lost.way.under_way.settle(Some(self.seed())).await;
    }

    async fn live(self: &Arc<VolumeNamesWorld>, random: &mut SimulationRandom) -> Result<(), String> {
        self.serve().await?;
        for host in 0..HOSTS {
            self.start_host(host).await?;
        }
        self.first_directories().await;
        let (calls, pause_ms_max) = match self.are_names_local {
            true => (30 + random.below(30), 2500),
            false => (5 + random.below(10), 500),
        };
        (0..HOSTS).for_each(|host| self.start_programs(host, calls));
        for _ in 0..random.below(4) {
            sleep(Duration::from_millis(random.below(pause_ms_max))).await;
            self.lose_something(random, calls).await?;
        }
        self.end_programs().await?;
        if self.are_names_local {
            let calls = self.board.history(|history| history.calls());
            lock(&self.coverage).add_local_calls(calls);
        } else if random.chance(SCENES_PERCENT) {
            self.play(random).await?;
        }
        self.look_at_all().await;
        self.finish().await
    }

    /// Returns another program of a host.
    pub fn program(&self, host: usize) -> Option<NamesProgram> {
        let mount = lock(&self.hosts)[host].as_ref().map(|host| host.mount.clone())?;
        let number = self.programs.fetch_add(1, Ordering::Relaxed);
        Some(NamesProgram::new(self.board.clone(), mount, number, self.seed()))
    }

    /// Runs a program of a host, which ends with the host.
    pub fn run_on(&self, host: usize, program: impl Future<Output = ()> + Send + 'static) {
        if let Some(host) = &mut lock(&self.hosts)[host] {
            host.programs.push(tokio::spawn(program));
        }
    }

    async fn first_directories(&self) {
        if let Some(program) = self.program(0) {
            program.make_first().await;
        }
    }

    async fn lose_something(
        self: &Arc<VolumeNamesWorld>,
        random: &mut SimulationRandom,
        calls: u64,
    ) -> Result<(), String> {
        let host = random.below(HOSTS as u64) as usize;
        let is_all_lost = random.chance(50);
        let of_host = lock(&self.hosts)[host].as_ref().map(|host| (host.network.clone(), host.mount.clone()));
        let Some((network, mount)) = of_host else { return Ok(()) };
        match random.below(10) {
            0..3 => {
                self.met(RequiredEvent::ServerLost);
                self.lose_server().await;
                sleep(Duration::from_millis(random.below(400))).await;
                self.serve().await?;
            }
            3 => {
                self.met(RequiredEvent::ServerStopped);
                self.stop_server().await?;
                self.serve().await?;
            }
            4 => {
                self.met(RequiredEvent::HostLost);
                self.kill(host, is_all_lost).await;
                sleep(Duration::from_millis(random.below(3000))).await;
                self.start_host(host).await?;
                self.start_programs(host, calls / 2);
            }
            5..8 => {
                self.met(RequiredEvent::BothLost);
                match random.chance(50) {
                    true => {
                        self.kill(host, is_all_lost).await;
                        sleep(Duration::from_micros(random.below(3000))).await;
                        self.lose_server().await;
                    }
                    false => {
                        self.lose_server().await;
                        self.kill(host, is_all_lost).await;
                    }
                }
                sleep(Duration::from_millis(random.below(400))).await;
                self.serve().await?;
                self.start_host(host).await?;
                self.start_programs(host, calls / 2);
            }
            8 => {
                let is_long = random.chance(50);
                self.met(if is_long { RequiredEvent::LongCut } else { RequiredEvent::ShortCut });
                let cut_ms = if is_long { 5000 + random.below(8000) } else { random.below(CUT_MS_MAX) };
                if is_long {
                    self.excuse(host);
                }
                if is_long && random.chance(60) {
                    // What its programs began is answered and durable before the cut; they go on when it has no lease.
                    let unleased_ms = UNLEASED_MS.0 + random.below(UNLEASED_MS.1 - UNLEASED_MS.0);
                    mount.rest(SETTLED + Duration::from_millis(unleased_ms));
                    sleep(SETTLED).await;
                }
                self.board.tell(|| format!("host {host} is cut off for {cut_ms} ms"));
                let session = mount.session().1;
                self.board.history(|history| history.cut(session, true));
                network.cut(true);
                if random.chance(30) {
                    self.met(RequiredEvent::ServerLost);
                    self.lose_server().await;
                    self.serve().await?;
                }
                sleep(Duration::from_millis(cut_ms)).await;
                self.board.history(|history| history.cut(session, false));
                network.cut(false);
            }
            _ => {
                self.met(RequiredEvent::ConnectionLost);
                network.break_all(is_all_lost);
            }
        }
        Ok(())
    }

    /// Notes that the session of a host may be ended.
    fn excuse(&self, host: usize) {
        if let Some(host) = &lock(&self.hosts)[host] {
            *lock(&host.is_excused) = true;
        }
    }

    /// Waits until all programs have ended.
    pub async fn end_programs(&self) -> Result<(), String> {
        let programs: Vec<JoinHandle<()>> =
            lock(&self.hosts).iter_mut().flatten().flat_map(|host| std::mem::take(&mut host.programs)).collect();
        for program in programs {
            program.await.map_err(|error| format!("a program ended: {error}"))?;
        }
        Ok(())
    }

    /// Every host looks at everything, under a living session.
    async fn look_at_all(&self) {
        let mounts: Vec<Arc<SimulatedMount>> =
            lock(&self.hosts).iter().flatten().map(|host| host.mount.clone()).collect();
        let mut looking = Vec::new();
        for mount in mounts {
            while mount.session().0.is_over() {
                sleep(Duration::from_millis(100)).await;
            }
            let number = self.programs.fetch_add(1, Ordering::Relaxed);
            let program = NamesProgram::new(self.board.clone(), mount, number, self.seed());
            let is_first = looking.is_empty();
            looking.push(tokio::spawn(async move { program.look_at_all(is_first).await }));
        }
        for looking in looking {
            let _ = looking.await;
        }
    }

    /// Ends all sessions and the server, and checks the records.
    async fn finish(&self) -> Result<(), String> {
        let hosts: Vec<ProgramHost> = lock(&self.hosts).iter_mut().filter_map(Option::take).collect();
        for host in hosts {
            let kernel = &host.mount.kernel;
            lock(&self.coverage).add(kernel.hits.load(Ordering::Relaxed), kernel.forgotten.load(Ordering::Relaxed));
            // The keeper would begin another session.
            host.tasks.last().into_iter().for_each(AbortHandle::abort);
            let (client, _) = host.mount.session();
            self.note_local(&client);
            if !client.is_over() {
                client.close().await.map_err(|error| format!("the end of a session: {error}"))?;
            }
        }
        self.stop_server().await?;
        let volume = read(&self.disk).await.map_err(|error| format!("the volume cannot be read: {error}"))?;
        match &metadata::check(&volume.tables, &volume.label)[..] {
            [] => Ok(()),
            problems => Err(format!("check: {}", problems.join("; "))),
        }
    }
}
