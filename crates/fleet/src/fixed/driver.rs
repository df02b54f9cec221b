//! The thread that drives the machine of fixed members.
//!
//! Owns: [`FixedFleet`], a task for each action, and their order: the gate is set before an action is begun. Everything ends
//! when the fleet is left or dropped. Leaves to others: what happens when (`machine`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_host::clock::since_boot;
use nectary_host::fleet::{
    FleetError, FleetFigures, FleetGate, FleetMembership, FleetPurge, FleetView, Later, LoggedPurge, NodeName,
    OwnerOrder, PeerMessage, PurgeOutcome, PurgeStore, PurgeWish, RulesHash,
};
use nectary_host::log::{self, LogLevel};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::known_logs::FixedStep;
use super::log_file::FixedLogFile;
use super::machine::{FixedAction, FixedEvent, FixedMachine};
use super::messages::{SyncMessage, read_message, write_message};
use super::peer_client::PeerClient;
use crate::driving::{self, PurgeReply, TICK, WAITING_MAX, now_s};
use crate::etcd::random_u64;
use crate::options::{FleetOptions, MemberAddress, TlsFiles};
use crate::pauses::PauseWatch;
use crate::renewed_tls::RenewedTls;

/// The shortest time that a request may take.
const CALL_TIME_MIN: Duration = Duration::from_secs(1);
/// The word of the one message that there is.
const SYNC: &str = "sync";

/// What is asked of the driver.
enum MemberCommand {
    Purge { purge: FleetPurge, wish: PurgeWish, reply: PurgeReply },
    Message { message: Box<SyncMessage>, reply: oneshot::Sender<Result<SyncMessage, String>> },
    Leave(oneshot::Sender<()>),
}

/// What the driver and the proxy's workers share.
struct MemberShared {
    fleet: String,
    name: NodeName,
    gate: Arc<FleetGate>,
    views: watch::Sender<Arc<FleetView>>,
    machine: Mutex<FixedMachine>,
    is_leaving: AtomicBool,
}

impl MemberShared {
    fn machine(&self) -> MutexGuard<'_, FixedMachine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_gate(&self, machine: &FixedMachine, now: Duration) {
        driving::set_gate(&self.gate, &self.is_leaving, machine.rules_hash(), machine.gate(now));
    }
}

/// A fleet of fixed members, as one of them sees it.
pub struct FixedFleet {
    shared: Arc<MemberShared>,
    commands: mpsc::Sender<MemberCommand>,
    /// The rules of this node: only the last ones count.
    rules: watch::Sender<RulesHash>,
}

impl FixedFleet {
    /// Begins, in a thread of this call. The node serves from its store when it has what the others have.
    ///
    /// *Errors*: files of TLS, the file of the log, or no thread; a text for the operator.
    pub fn start(
        options: &FleetOptions,
        members: &[MemberAddress],
        log: &Path,
        tls: &TlsFiles,
        serve_limit: Option<Duration>,
        store: Arc<dyn PurgeStore>,
    ) -> Result<Arc<FixedFleet>, String> {
        let tls = Arc::new(RenewedTls::load(tls.clone())?);
        let limits = options.limits.clone();
        let call_time = (limits.lease / 2).max(CALL_TIME_MIN);
        let names: Vec<NodeName> = members.iter().filter_map(MemberAddress::name).collect();
        let others = members.iter().filter(|member| member.name().as_ref() != Some(&options.node));
        let clients = others
            .map(|member| Arc::new(PeerClient::new(member.host.clone(), member.port, tls.clone(), call_time)))
            .collect();
        let (file, loaded) = FixedLogFile::open(log, &options.node, store.mark())?;
        let own = options.own_node(random_u64());
        let machine = FixedMachine::new(
            limits,
            serve_limit,
            (options.fleet.clone(), own),
            &names,
            loaded,
            store.mark(),
            since_boot(),
        );
        let shared = Arc::new(MemberShared {
            fleet: options.fleet.clone(),
            name: options.node.clone(),
            gate: Arc::new(FleetGate::new()),
            views: watch::Sender::new(machine.view.clone()),
            machine: Mutex::new(machine),
            is_leaving: AtomicBool::new(false),
        });
        let (commands, incoming) = mpsc::channel(WAITING_MAX);
        let (rules, new_rules) = watch::channel(options.rules);
        let (events, inbox) = mpsc::channel(WAITING_MAX);
        let driver = FixedDriver {
            shared: Arc::clone(&shared),
            clients,
            file: Arc::new(Mutex::new(file)),
            store,
            events,
            inbox,
            commands: incoming,
            rules: new_rules,
            tasks: JoinSet::new(),
            purges: HashMap::new(),
            messages: HashMap::new(),
            tickets: 0,
            pauses: PauseWatch::new(),
        };
        driving::start_thread(move || driver.run())?;
        Ok(Arc::new(FixedFleet { shared, commands, rules }))
    }
}

impl FleetMembership for FixedFleet {
    fn name(&self) -> &NodeName {
        &self.shared.name
    }

    fn gate(&self) -> &Arc<FleetGate> {
        &self.shared.gate
    }

    fn views(&self) -> watch::Receiver<Arc<FleetView>> {
        self.shared.views.subscribe()
    }

    fn owners(&self, _key: &[u8]) -> OwnerOrder {
        // No keys are shared.
        OwnerOrder::new(self.shared.views.borrow().clone(), [], None)
    }

    fn reach(&self, _revision: u64) -> Later<()> {
        // Nobody asks for objects.
        Box::pin(std::future::pending())
    }

    fn purge(&self, purge: FleetPurge, wish: PurgeWish) -> Later<Result<PurgeOutcome, FleetError>> {
        driving::send_purge(self.commands.clone(), move |reply| MemberCommand::Purge { purge, wish, reply })
    }

    fn set_rules(&self, rules: RulesHash) {
        self.rules.send_replace(rules);
    }

    fn on_message(&self, message: PeerMessage) -> Later<Result<Vec<u8>, FleetError>> {
        let commands = self.commands.clone();
        Box::pin(async move {
            if message.word != SYNC {
                let what = format!("no message between nodes has the word {:?}", message.word);
                return Err(FleetError::Message(what));
            }
            let message = Box::new(read_message(&message.body).map_err(FleetError::Message)?);
            let (reply, answer) = oneshot::channel();
            if commands.send(MemberCommand::Message { message, reply }).await.is_err() {
                return Err(FleetError::Stopping);
            }
            match answer.await {
                Ok(Ok(answer)) => Ok(write_message(&answer)),
                Ok(Err(why)) => Err(FleetError::Message(why)),
                Err(_) => Err(FleetError::Stopping),
            }
        })
    }

    fn figures(&self) -> FleetFigures {
        let figures = self.shared.machine().figures(since_boot());
        FleetFigures { fleet: self.shared.fleet.clone(), by: "members".to_owned(), ..figures }
    }

    fn leave(&self) -> Later<()> {
        let shut = (&*self.shared.gate, &self.shared.is_leaving);
        driving::leave(shut, self.commands.clone(), MemberCommand::Leave)
    }
}

/// The thread's part.
struct FixedDriver {
    shared: Arc<MemberShared>,
    clients: Vec<Arc<PeerClient>>,
    file: Arc<Mutex<FixedLogFile>>,
    store: Arc<dyn PurgeStore>,
    events: mpsc::Sender<FixedEvent>,
    inbox: mpsc::Receiver<FixedEvent>,
    commands: mpsc::Receiver<MemberCommand>,
    rules: watch::Receiver<RulesHash>,
    tasks: JoinSet<()>,
    purges: HashMap<u64, PurgeReply>,
    messages: HashMap<u64, oneshot::Sender<Result<SyncMessage, String>>>,
    tickets: u64,
    pauses: PauseWatch,
}

impl FixedDriver {
    async fn run(mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(event) = self.inbox.recv() => self.take(event),
                command = self.commands.recv() => match command {
                    Some(MemberCommand::Purge { purge, wish, reply }) => {
                        self.tickets += 1;
                        self.purges.insert(self.tickets, reply);
                        self.take(FixedEvent::PurgeRequested { ticket: self.tickets, purge, wish, now_s: now_s() });
                    }
                    Some(MemberCommand::Message { message, reply }) => {
                        self.tickets += 1;
                        self.messages.insert(self.tickets, reply);
                        self.take(FixedEvent::Asked { ticket: self.tickets, message });
                    }
                    Some(MemberCommand::Leave(reply)) => {
                        self.end();
                        let _ = reply.send(());
                        return;
                    }
                    None => return self.end(),
                },
                Ok(()) = self.rules.changed() => {
                    let rules = *self.rules.borrow_and_update();
                    self.take(FixedEvent::RulesChanged(rules));
                }
                _ = ticks.tick() => self.take(FixedEvent::Tick { now_s: now_s() }),
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    /// Answers who waits, and ends.
    fn end(&mut self) {
        self.shared.is_leaving.store(true, Ordering::Release);
        self.take(FixedEvent::Leave);
        self.tasks.abort_all();
    }

    /// Gives the machine an event, after a pause of the host that came before it.
    fn take(&mut self, event: FixedEvent) {
        if let Some(time) = self.pauses.look() {
            self.take_next(FixedEvent::Paused { time });
        }
        self.take_next(event);
    }

    /// Gives the machine an event, sets what others see, and begins what it wants.
    fn take_next(&mut self, event: FixedEvent) {
        let actions = {
            let (now, mut machine) = (since_boot(), self.shared.machine());
            let actions = machine.on_event(now, event);
            self.shared.set_gate(&machine, now);
            if !Arc::ptr_eq(&machine.view, &self.shared.views.borrow()) {
                self.shared.views.send_replace(machine.view.clone());
            }
            actions
        };
        actions.into_iter().for_each(|action| self.begin(action));
    }

    /// Begins an action. Its end comes as an event.
    fn begin(&mut self, action: FixedAction) {
        match action {
            FixedAction::Ask { member, message } => {
                let Some(client) = self.clients.get(member).cloned() else { return };
                self.spawn(async move {
                    let asked = since_boot();
                    let silent = |is_refused, why| FixedEvent::Silent { member, asked, is_refused, why };
                    match client.ask(SYNC, write_message(&message)).await {
                        Ok(answer) => match read_message(&answer) {
                            Ok(answer) => FixedEvent::Answered { member, asked, answer: Box::new(answer) },
                            Err(why) => silent(false, why),
                        },
                        Err(failure) => silent(failure.is_refused, failure.why),
                    }
                });
            }
            FixedAction::Reply { ticket, result } => {
                if let Some(reply) = self.messages.remove(&ticket) {
                    let _ = reply.send(result);
                }
            }
            FixedAction::Take { batch, first, steps, mark } => {
                let (file, store) = (Arc::clone(&self.file), Arc::clone(&self.store));
                self.spawn(async move {
                    let purges = (first..).zip(&steps).map(|(revision, step)| LoggedPurge {
                        revision,
                        purge: match step {
                            FixedStep::Purge(logged) => logged.purge.clone(),
                            FixedStep::Everything(_) => FleetPurge::EVERYTHING,
                        },
                    });
                    let purges: Vec<LoggedPurge> = purges.collect();
                    let append = move || file.lock().unwrap_or_else(PoisonError::into_inner).append(first, &steps);
                    let taken = match tokio::task::spawn_blocking(append).await {
                        Ok(Ok(())) => store.apply(purges, Some(mark)).await,
                        Ok(Err(error)) => Err(format!("the `purge-log` cannot be written: {error}")),
                        Err(error) => Err(error.to_string()),
                    };
                    match taken {
                        Ok(()) => FixedEvent::Taken { batch },
                        Err(why) => FixedEvent::TakeFailed { batch, why },
                    }
                });
            }
            FixedAction::Rewrite { extents, steps } => {
                let file = Arc::clone(&self.file);
                self.spawn(async move {
                    let rewrite = move || file.lock().unwrap_or_else(PoisonError::into_inner).rewrite(extents, &steps);
                    if let Ok(Err(error)) = tokio::task::spawn_blocking(rewrite).await {
                        let text = format_args!("fleet: the `purge-log` cannot be made smaller: {error}");
                        log::write(LogLevel::Warning, "proxy", text);
                    }
                    FixedEvent::Rewritten
                });
            }
            FixedAction::Answer { ticket, result } => {
                if let Some(reply) = self.purges.remove(&ticket) {
                    let _ = reply.send(result);
                }
            }
            FixedAction::Note(text) => log::write(LogLevel::Warning, "proxy", format_args!("{text}")),
        }
    }

    fn spawn(&mut self, action: impl Future<Output = FixedEvent> + Send + 'static) {
        let events = self.events.clone();
        self.tasks.spawn(async move {
            let _ = events.send(action.await).await;
        });
    }
}
