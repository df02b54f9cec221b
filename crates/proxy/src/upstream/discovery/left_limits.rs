//! The limits on connections to servers that the records no longer name.
//!
//! Owns: that a server which is back has the limit of before as long as a connection to it, or a request that waits for one,
//! is left: a record that is missing in one answer must not give the server twice its connections. Promises: what nobody
//! uses is forgotten, so there are no more limits than connections and requests that wait.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::super::server_limit::ServerLimit;
use super::super::server_set::OriginServer;
use crate::rules::key::UrlOrigin;

/// The limits of servers that are gone, while somebody uses them.
#[derive(Debug, Default)]
pub(super) struct LeftLimits(Mutex<Vec<(UrlOrigin, Weak<ServerLimit>)>>);

impl LeftLimits {
    /// Remembers the limit of a server that is gone.
    pub fn keep(&self, server: &OriginServer) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|(_, limit)| limit.strong_count() > 0);
        left.extend(server.limit.as_ref().map(|limit| (server.origin.clone(), Arc::downgrade(limit))));
    }

    /// The limit of a server that is back, if somebody uses it still.
    pub fn take(&self, origin: &UrlOrigin) -> Option<Arc<ServerLimit>> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = left.iter().position(|(of, limit)| of == origin && limit.strong_count() > 0)?;
        left.swap_remove(index).1.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::upstream::LimitRule;

    #[test]
    fn limit_stays_while_somebody_uses_it() {
        let rule = LimitRule { connections_max: 1, queue_max: 1, queue_time: Duration::from_secs(1) };
        let server =
            |port| OriginServer::new(UrlOrigin { https: false, host: "a".into(), port }, 1).limited(Some(rule));
        let (left, used, unused) = (LeftLimits::default(), server(1), server(2));
        let place = used.limit.as_ref().and_then(ServerLimit::try_take).expect("a place");
        for server in [&used, &unused] {
            left.keep(server);
        }
        let origins = [&used, &unused].map(|server| server.origin.clone());
        drop((used, unused));
        assert!(left.take(&origins[1]).is_none());
        let limit = left.take(&origins[0]).expect("a connection has it");
        assert!(limit.try_take().is_none(), "its place is not free");
        assert!(left.take(&origins[0]).is_none(), "one server has it");
        drop(place);
        assert!(limit.try_take().is_some());
        left.keep(&server(3));
        left.keep(&server(4));
        assert_eq!(left.0.lock().expect("no panic").len(), 1, "what nobody uses is forgotten");
    }
}
