//! The thread that drives the machine with etcd.
//!
//! Owns: [`EtcdFleet`], a task for each action, and their order: the gate is set before an action is begun. Everything ends
//! when the fleet is left or dropped. Leaves to others: what happens when (`machine`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nectary_host::clock::since_boot;
use nectary_host::fleet::{
    FleetError, FleetFigures, FleetGate, FleetMembership, FleetPurge, FleetView, Later, LoggedPurge, NodeName,
    OwnerOrder, PeerMessage, PurgeOutcome, PurgeStore, PurgeWish, RulesHash,
};
use nectary_host::log::{self, LogLevel};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::calls::{AppendResult, FleetCalls, JoinError, KeepResult, random_u64};
use super::client::EtcdClient;
use crate::driving::{self, LEAVE_TIME_MAX, PurgeReply, TICK, WAITING_MAX, now_s};
use crate::machine::{FleetAction, FleetEvent, FleetMachine};
use crate::options::{EtcdEndpoint, FleetOptions, TlsFiles};
use crate::pauses::PauseWatch;
use crate::records::{FleetKeys, PurgeKey};
use crate::renewed_tls::RenewedTls;
use crate::shares::FleetShares;

/// The shortest time that a request may take.
const CALL_TIME_MIN: Duration = Duration::from_millis(500);

/// What is asked of the driver.
enum DriverCommand {
    Purge { purge: FleetPurge, wish: PurgeWish, reply: PurgeReply },
    Leave(oneshot::Sender<()>),
}

/// What the driver and the proxy's workers share.
struct DriverShared {
    fleet: String,
    name: NodeName,
    gate: Arc<FleetGate>,
    views: watch::Sender<Arc<FleetView>>,
    shares: watch::Sender<Arc<FleetShares>>,
    applied: watch::Sender<u64>,
    machine: Mutex<FleetMachine>,
    is_leaving: AtomicBool,
}

impl DriverShared {
    fn set_gate(&self, machine: &FleetMachine) {
        driving::set_gate(&self.gate, &self.is_leaving, machine.rules(), machine.gate());
    }

    fn machine(&self) -> MutexGuard<'_, FleetMachine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fleet that etcd connects, as one of its nodes sees it.
pub struct EtcdFleet {
    shared: Arc<DriverShared>,
    commands: mpsc::Sender<DriverCommand>,
    /// The rules of this node: only the last ones count.
    rules: watch::Sender<RulesHash>,
}

impl EtcdFleet {
    /// Joins a fleet, in a thread of this call. The node serves from its store when it has applied what it missed.
    ///
    /// *Errors*: files of TLS, or no thread; a text for the operator. That etcd is away is no error.
    pub fn start(
        options: &FleetOptions,
        endpoints: Vec<EtcdEndpoint>,
        tls: &TlsFiles,
        store: Arc<dyn PurgeStore>,
    ) -> Result<Arc<EtcdFleet>, String> {
        let has_tls = endpoints.iter().any(|endpoint| endpoint.has_tls);
        let tls = has_tls.then(|| RenewedTls::load(tls.clone())).transpose()?;
        let run = random_u64();
        let limits = options.limits.clone();
        let call_time = (limits.lease / 4).max(CALL_TIME_MIN);
        let client = EtcdClient::new(endpoints, tls, call_time);
        let calls = FleetCalls::new(client, FleetKeys::new(&options.fleet), options.node.clone(), run);
        let machine = FleetMachine::new(limits.clone(), options.own_node(run), store.mark());
        let view = machine.view().clone();
        let shared = Arc::new(DriverShared {
            fleet: options.fleet.clone(),
            name: options.node.clone(),
            gate: Arc::new(FleetGate::new()),
            shares: watch::Sender::new(Arc::new(FleetShares::new(view.clone(), &options.node))),
            views: watch::Sender::new(view),
            applied: watch::Sender::new(0),
            machine: Mutex::new(machine),
            is_leaving: AtomicBool::new(false),
        });
        let (commands, incoming) = mpsc::channel(WAITING_MAX);
        let (rules, new_rules) = watch::channel(options.rules);
        let (events, inbox) = mpsc::channel(WAITING_MAX);
        let driver = FleetDriver {
            shared: Arc::clone(&shared),
            calls: Arc::new(calls),
            store,
            limits,
            events,
            inbox,
            commands: incoming,
            rules: new_rules,
            tasks: JoinSet::new(),
            watching: None,
            replies: HashMap::new(),
            keys: HashMap::new(),
            tickets: 0,
            pauses: PauseWatch::new(),
        };
        driving::start_thread(move || driver.run())?;
        Ok(Arc::new(EtcdFleet { shared, commands, rules }))
    }
}

impl FleetMembership for EtcdFleet {
    fn name(&self) -> &NodeName {
        &self.shared.name
    }

    fn gate(&self) -> &Arc<FleetGate> {
        &self.shared.gate
    }

    fn views(&self) -> watch::Receiver<Arc<FleetView>> {
        self.shared.views.subscribe()
    }

    fn owners(&self, key: &[u8]) -> OwnerOrder {
        self.shared.shares.borrow().owners(key)
    }

    fn reach(&self, revision: u64) -> Later<()> {
        let mut applied = self.shared.applied.subscribe();
        Box::pin(async move {
            if applied.wait_for(|applied| *applied >= revision).await.is_err() {
                // The fleet has ended, and nothing is applied any more: the caller's time runs out.
                std::future::pending::<()>().await;
            }
        })
    }

    fn purge(&self, purge: FleetPurge, wish: PurgeWish) -> Later<Result<PurgeOutcome, FleetError>> {
        driving::send_purge(self.commands.clone(), move |reply| DriverCommand::Purge { purge, wish, reply })
    }

    fn set_rules(&self, rules: RulesHash) {
        self.rules.send_replace(rules);
    }

    fn on_message(&self, message: PeerMessage) -> Later<Result<Vec<u8>, FleetError>> {
        let what = format!("a fleet by etcd has no messages, and none with the word {:?}", message.word);
        Box::pin(async move { Err(FleetError::Message(what)) })
    }

    fn figures(&self) -> FleetFigures {
        let figures = self.shared.machine().figures(since_boot());
        FleetFigures { fleet: self.shared.fleet.clone(), by: "etcd".to_owned(), ..figures }
    }

    fn leave(&self) -> Later<()> {
        let shut = (&*self.shared.gate, &self.shared.is_leaving);
        driving::leave(shut, self.commands.clone(), DriverCommand::Leave)
    }
}

/// A watch under way: its events, and its task.
struct RunningWatch {
    events: mpsc::Receiver<FleetEvent>,
    _task: AbortOnDropHandle<()>,
}

/// The thread's part.
struct FleetDriver {
    shared: Arc<DriverShared>,
    calls: Arc<FleetCalls>,
    store: Arc<dyn PurgeStore>,
    limits: crate::machine::FleetRules,
    events: mpsc::Sender<FleetEvent>,
    inbox: mpsc::Receiver<FleetEvent>,
    commands: mpsc::Receiver<DriverCommand>,
    rules: watch::Receiver<RulesHash>,
    tasks: JoinSet<()>,
    watching: Option<RunningWatch>,
    replies: HashMap<u64, PurgeReply>,
    /// The key and the value of each purge that is not known to be in the log.
    keys: HashMap<u64, (PurgeKey, Bytes)>,
    tickets: u64,
    pauses: PauseWatch,
}

impl FleetDriver {
    async fn run(mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(event) = self.inbox.recv() => self.take(event),
                Some(event) = next_of(&mut self.watching) => self.take(event),
                command = self.commands.recv() => match command {
                    Some(DriverCommand::Purge { purge, wish, reply }) => self.begin_purge(purge, wish, reply),
                    Some(DriverCommand::Leave(reply)) => {
                        self.end().await;
                        let _ = reply.send(());
                        return;
                    }
                    None => return self.end().await,
                },
                Ok(()) = self.rules.changed() => {
                    let rules = *self.rules.borrow_and_update();
                    self.take(FleetEvent::RulesChanged(rules));
                }
                _ = ticks.tick() => self.take(FleetEvent::Tick),
            }

            while self.tasks.try_join_next().is_some() {}
        }
    }

    /// Leaves, and gives the lease back if that is quick.
    async fn end(&mut self) {
        self.shared.is_leaving.store(true, Ordering::Release);
        self.watching = None;
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        self.take(FleetEvent::Leave);
        let _ = timeout(LEAVE_TIME_MAX / 2, async { while self.tasks.join_next().await.is_some() {} }).await;
    }

    fn begin_purge(&mut self, purge: FleetPurge, wish: PurgeWish, reply: PurgeReply) {
        self.tickets += 1;
        self.replies.insert(self.tickets, reply);
        self.take(FleetEvent::PurgeRequested { ticket: self.tickets, purge, wish });
    }

    /// Gives the machine an event, after a pause of the host that came before it.
    fn take(&mut self, event: FleetEvent) {
        if let Some(time) = self.pauses.look() {
            note(&format!("the clock of the day went on by {time:?} alone, as if this host had stood still"));
            self.take_next(FleetEvent::Paused { time });
        }
        self.take_next(event);
    }

    /// Gives the machine an event, sets what others see, and begins what it wants.
    fn take_next(&mut self, event: FleetEvent) {
        if let FleetEvent::Appended { ticket, .. } = &event {
            self.keys.remove(ticket);
        }
        let actions = {
            let mut machine = self.shared.machine();
            let actions = machine.on_event(since_boot(), event);
            self.shared.gate.set_required(machine.required());
            self.shared.set_gate(&machine);
            let applied = machine.applied();
            // Without a mark of the fleet the revision is 0, which no answer is behind.
            self.shared.gate.set_fleet(if machine.has_fleet() { machine.mark().fleet } else { 0 });
            self.shared.gate.set_applied(applied);
            if self.shared.gate.begun() < applied {
                self.shared.gate.set_begun(applied);
            }
            self.shared.applied.send_if_modified(|known| std::mem::replace(known, applied) != applied);
            let view = machine.view().clone();
            if !Arc::ptr_eq(&view, &self.shared.views.borrow()) {
                self.shared.shares.send_replace(Arc::new(FleetShares::new(view.clone(), &self.shared.name)));
                self.shared.views.send_replace(view);
            }
            actions
        };
        actions.into_iter().for_each(|action| self.begin(action));
    }

    /// Begins an action. Its end comes as an event.
    fn begin(&mut self, action: FleetAction) {
        let (calls, limits) = (Arc::clone(&self.calls), self.limits.clone());
        match action {
            FleetAction::GrantLease => self.spawn(async move {
                let asked = since_boot();
                Some(match calls.grant(limits.lease).await {
                    Ok(lease) => FleetEvent::LeaseGranted { lease, asked },
                    Err(error) => FleetEvent::LeaseFailed { why: error.to_string() },
                })
            }),
            FleetAction::KeepLease { lease } => self.spawn(async move {
                let asked = since_boot();
                Some(match calls.keep(lease).await {
                    Ok(KeepResult::Kept) => FleetEvent::LeaseKept { lease, asked },
                    Ok(KeepResult::WithoutKey) => FleetEvent::KeyMissing { lease, asked },
                    Ok(KeepResult::Ended) => FleetEvent::LeaseEnded { lease },
                    Err(error) => FleetEvent::LeaseFailed { why: error.to_string() },
                })
            }),
            FleetAction::RevokeLease { lease } => self.spawn(async move {
                // If it fails, the lease ends by itself.
                let _ = calls.revoke(lease).await;
                None
            }),
            FleetAction::Join { lease, node, mark } => self.spawn(async move {
                Some(match calls.join(lease, &node, mark).await {
                    Ok(identity) => FleetEvent::Joined { lease, identity },
                    Err(JoinError::Taken(process)) => {
                        let is_gone = calls.is_gone(&process);
                        FleetEvent::NameTaken { process, is_gone }
                    }
                    Err(JoinError::Other(why)) => FleetEvent::JoinFailed { why },
                })
            }),
            FleetAction::Rewrite { lease, node } => self.spawn(async move {
                if let Err(error) = calls.rewrite(lease, &node).await {
                    note(&format!("the others do not know the rules of this node: {error}"));
                }
                None
            }),
            FleetAction::Read { above } => self.spawn(async move {
                Some(match calls.read(above).await {
                    Ok(snapshot) => FleetEvent::LogRead(snapshot),
                    Err(error) => FleetEvent::ReadFailed { why: error.to_string() },
                })
            }),
            FleetAction::Watch { from } => self.watch(from),
            FleetAction::Apply { batch, purges, mark } => {
                self.shared.gate.set_begun(mark.revision);
                let applied = self.store.apply(purges, Some(mark));
                self.spawn(async move {
                    Some(match applied.await {
                        Ok(()) => FleetEvent::BatchApplied { batch },
                        Err(why) => FleetEvent::BatchFailed { batch, why },
                    })
                });
            }
            FleetAction::ApplyHere { purge } => {
                let applied = self.store.apply(vec![LoggedPurge { revision: 0, purge }], None);
                self.spawn(async move {
                    if let Err(why) = applied.await {
                        note(&format!("a purge that waits for etcd is not durable on this node: {why}"));
                    }
                    None
                });
            }
            FleetAction::Append { ticket, purge } => self.append(ticket, &purge),
            FleetAction::Publish { lease, revision } => self.spawn(async move {
                Some(match calls.publish(lease, revision).await {
                    Ok(true) => FleetEvent::Published { lease, revision },
                    // The key of this node is gone, or the fleet has another identity.
                    Ok(false) => FleetEvent::LeaseEnded { lease },
                    Err(_) => FleetEvent::PublishFailed { lease },
                })
            }),
            FleetAction::ReviewLog { may_trim } => self
                .spawn(async move { calls.review(&limits, may_trim, now_s()).await.ok().map(FleetEvent::LogReviewed) }),
            FleetAction::Answer { ticket, result } => {
                if !matches!(&result, Ok(outcome) if outcome.is_queued) {
                    self.keys.remove(&ticket);
                }
                if let Some(reply) = self.replies.remove(&ticket) {
                    let _ = reply.send(result);
                }
            }
            FleetAction::Note(text) => log::write(LogLevel::Warning, "proxy", format_args!("{text}")),
        }
    }

    fn append(&mut self, ticket: u64, purge: &FleetPurge) {
        let calls = Arc::clone(&self.calls);
        let accepted_s = u32::try_from(now_s()).unwrap_or(u32::MAX);
        let made = self.keys.get(&ticket).cloned().or_else(|| calls.purge_key(ticket, accepted_s, purge));
        if let Some(made) = &made {
            self.keys.insert(ticket, made.clone());
        }
        self.spawn(async move {
            let failed = |is_unknown, why| Some(FleetEvent::AppendFailed { ticket, is_unknown, why });
            let Some((key, value)) = made else { return failed(false, "it is out of bounds".to_owned()) };
            match calls.append(key, value).await {
                Ok(AppendResult::Logged { revision, living }) => {
                    Some(FleetEvent::Appended { ticket, revision, living })
                }
                Ok(AppendResult::Refused) => failed(false, "the fleet has another identity now".to_owned()),
                Err(error) => failed(!error.is_certain(), error.to_string()),
            }
        });
    }

    /// Begins a watch; one under way ends, and what it has brought and nobody has taken is dropped with it.
    fn watch(&mut self, from: u64) {
        let (sender, events) = mpsc::channel(WAITING_MAX);
        let (calls, interval) = (Arc::clone(&self.calls), self.limits.lease / 4);
        let task = tokio::spawn(async move {
            let ended = calls.watch(from, interval, &sender).await;
            let _ = sender.send(ended).await;
        });
        self.watching = Some(RunningWatch { events, _task: AbortOnDropHandle::new(task) });
    }

    fn spawn(&mut self, action: impl Future<Output = Option<FleetEvent>> + Send + 'static) {
        let events = self.events.clone();
        self.tasks.spawn(async move {
            if let Some(event) = action.await {
                let _ = events.send(event).await;
            }
        });
    }
}

/// The next event of a watch; `None` if there is none, or if it has ended and said so.
async fn next_of(watching: &mut Option<RunningWatch>) -> Option<FleetEvent> {
    watching.as_mut()?.events.recv().await
}

fn note(text: &str) {
    log::write(LogLevel::Warning, "proxy", format_args!("fleet: {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{FleetRules, LogSnapshot};
    use nectary_host::fleet::{AppliedMark, FleetNode, NodeStanding};

    /// A machine that is a member.
    fn member(name: &NodeName) -> FleetMachine {
        let (zone, address, rules) = (String::new(), String::new(), RulesHash(1));
        let own = FleetNode { name: name.clone(), address, zone, weight: 1, rules, run: 1, since: 0 };
        let mut machine = FleetMachine::new(FleetRules::default(), own.clone(), AppliedMark::NONE);
        let nodes = vec![(FleetNode { since: 1, ..own }, 0)];
        for event in [
            FleetEvent::Tick,
            FleetEvent::LeaseGranted { lease: 1, asked: since_boot() },
            FleetEvent::Joined { lease: 1, identity: 7 },
            FleetEvent::LogRead(LogSnapshot { identity: 7, nodes, through: 2, ..LogSnapshot::default() }),
            FleetEvent::BatchApplied { batch: 1 },
        ] {
            machine.on_event(since_boot(), event);
        }
        machine
    }

    /// The thread may have looked just before somebody left.
    #[test]
    fn leaving_keeps_the_gate_shut() {
        let name = NodeName::new("a").expect("a name");
        let machine = member(&name);
        let view = machine.view().clone();
        let shared = DriverShared {
            fleet: String::new(),
            gate: Arc::new(FleetGate::new()),
            shares: watch::Sender::new(Arc::new(FleetShares::new(view.clone(), &name))),
            name,
            views: watch::Sender::new(view),
            applied: watch::Sender::new(0),
            machine: Mutex::new(machine),
            is_leaving: AtomicBool::new(false),
        };
        shared.set_gate(&shared.machine());
        assert_eq!(shared.gate.standing(), NodeStanding::Member);
        shared.is_leaving.store(true, Ordering::Release);
        shared.set_gate(&shared.machine());
        assert_eq!(shared.gate.standing(), NodeStanding::ValidateOnly);
    }
}
