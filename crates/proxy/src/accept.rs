//! A worker at work: it accepts, sweeps, and ends.
//!
//! Owns: accepting, and sweeping: on every tick of [`TICK`] it ends what is overdue, hands the access log over and looks
//! after kept connections. Promises: once a stop is requested, what is under way has the drain timeout to finish.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::time::Duration;

use nectary_host::Shutdown;
use nectary_host::log::{Level, Throttle};
use tokio::net::{TcpListener, TcpStream};

use crate::connections::Door;
use crate::service::connection;
use crate::wire::deadlines::{Side, TICK};
use crate::worker::Worker;

/// What a worker answers when it has too many connections.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
    cache-status: nectary; detail=too-many-connections\r\ncontent-length: 0\r\n\r\n";

/// How long what was cut off may take to end.
const CUT_OFF: Duration = Duration::from_secs(1);

/// Says that connections cannot be accepted, most likely for want of descriptors.
static ACCEPT_FAILED: Throttle = Throttle::every(Duration::from_secs(60));

/// Serves until a stop is requested, then finishes what is under way, within the drain timeout.
pub(crate) async fn run(
    worker: Rc<Worker>,
    listeners: Vec<(StdListener, Door)>,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let tasks = &worker.connections.tasks;
    let mut accepting = Vec::new();
    for (listener, door) in listeners {
        let listener = TcpListener::from_std(listener)?;
        accepting.push(tasks.spawn_local(accept(worker.clone(), listener, door)));
    }
    let sweeping = sweep(worker.clone());
    tokio::select! {
        () = sweeping => {}
        () = shutdown.requested() => {}
    }
    accepting.iter().for_each(|task| task.abort());
    worker.upstream.close();
    worker.connections.drain();
    tasks.close();
    let drained = async {
        tokio::select! {
            () = sweep(worker.clone()) => {}
            () = tasks.wait() => {}
        }
    };
    if tokio::time::timeout(worker.options.limits.drain_timeout, drained).await.is_err() {
        // What is still under way is cut off: fills fail, clients see their connection abort.
        worker.connections.kill();
        _ = tokio::time::timeout(CUT_OFF, tasks.wait()).await;
    }
    worker.log.flush();
    Ok(())
}

/// Accepts for ever.
async fn accept(worker: Rc<Worker>, listener: TcpListener, door: Door) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => admit(&worker, stream, client, door),
            Err(error) => {
                // Out of descriptors, most likely: those that are open must end first.
                ACCEPT_FAILED.write(Level::Warning, "proxy", format_args!("cannot accept a connection: {error}"));
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

fn admit(worker: &Rc<Worker>, stream: TcpStream, client: SocketAddr, door: Door) {
    if worker.stats.connections_open() >= worker.connections.clients_max as u64 {
        worker.stats.excess_connections.add(1);
        // A new connection has room for this; where it has not, closing says enough.
        _ = stream.try_write(TOO_MANY);
        return;
    }
    worker.stats.connections.add(1);
    worker.stats.connections_open.add(1);
    _ = stream.set_nodelay(true);
    let watch = worker.connections.new_watch(Side::Client);
    let enlisted = worker.connections.enlist(watch.clone());
    let worker = worker.clone();
    worker.clone().connections.tasks.spawn_local(async move {
        connection::serve(worker.clone(), watch, stream, client, door).await;
        worker.stats.connections_open.subtract(1);
        drop(enlisted);
    });
}

/// Ticks for ever.
async fn sweep(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        worker.look_at_clocks();
        worker.connections.sweep(&worker.stats);
        worker.upstream.sweep();
        worker.log.flush();
    }
}
