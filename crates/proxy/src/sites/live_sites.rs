//! The table in use, which a reload replaces.
//!
//! Owns: handing a new table to all workers. Each worker has its own reference to the table, so a request takes no lock;
//! it keeps the route with which it began.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::watch;

use super::SiteTable;
use crate::upstream::{OriginDown, OriginServer, ServerFigures, ServerPool, ServiceFigures};

/// The table in use.
#[derive(Debug, Clone)]
pub(crate) struct LiveSites {
    table: Arc<watch::Sender<Arc<SiteTable>>>,
    generation: Arc<AtomicU32>,
}

impl LiveSites {
    /// Begins with a table.
    pub fn new(sites: SiteTable) -> LiveSites {
        LiveSites { table: Arc::new(watch::Sender::new(Arc::new(sites))), generation: Arc::default() }
    }

    /// The table in use.
    pub fn now(&self) -> Arc<SiteTable> {
        self.table.borrow().clone()
    }

    /// The servers of origins for which `report` says that they fail; none without weight, which are not asked.
    pub fn servers_with(&self, report: impl Fn(&ServerPool, &OriginServer) -> Option<OriginDown>) -> Vec<OriginDown> {
        let mut found = Vec::new();
        for pool in self.now().pools() {
            for server in pool.servers().weighted() {
                let named = |down| OriginDown { name: pool.name.clone(), server_url: server.url(), ..down };
                found.extend(report(&pool, server).map(named));
            }
        }
        found
    }

    /// The servers of all origins, as they are now.
    pub fn servers(&self) -> Vec<ServerFigures> {
        let mut found = Vec::new();
        for pool in self.now().pools() {
            found.extend(pool.servers().all().iter().map(|server| ServerFigures {
                origin: pool.name.clone(),
                url: server.url(),
                weight: server.weight,
                priority: server.priority(),
                requests: server.state.requests(),
                requests_under_way: server.state.under_way(),
                failure: if server.weight == 0 { None } else { pool.failure_of(server) },
            }));
        }
        found
    }

    /// How looking up the servers of origins goes, of those whose servers are looked up.
    pub fn services(&self) -> Vec<ServiceFigures> {
        self.now().pools().iter().filter_map(|pool| pool.service_figures()).collect()
    }

    /// A number that no table has had yet; the first has 0.
    pub fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Replaces the table. Every worker uses it for the requests that it gets from a moment later on. A server that stays
    /// keeps the record of its failures.
    pub fn replace(&self, sites: SiteTable) {
        let former = self.now().pools();
        let servers = former.iter().flat_map(|pool| {
            let of_pool = |server: &Arc<OriginServer>| ((&*pool.name, server.origin.clone()), server.state.clone());
            pool.servers().all().iter().map(of_pool).collect::<Vec<_>>()
        });
        let known: HashMap<_, _> = servers.collect();
        for pool in sites.pools() {
            former.iter().filter(|former| former.name == pool.name).for_each(|former| pool.continue_from(former));
            for server in pool.servers().all() {
                if let Some(state) = known.get(&(&*pool.name, server.origin.clone())) {
                    server.state.continue_from(state, pool.rules.check.is_some() && server.weight > 0);
                }
            }
        }
        self.table.send_replace(Arc::new(sites));
    }

    /// What tells a worker of each new table.
    pub fn follow(&self) -> watch::Receiver<Arc<SiteTable>> {
        self.table.subscribe()
    }
}
