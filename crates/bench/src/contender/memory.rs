//! A contender that is a table in memory. It shows the cost of the harness itself. For tests, it can also return a
//! wrong byte.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::{ContenderStorage, ObjectHit};
use crate::Error;
use crate::workload::ProxyRequest;

/// Stores every object in memory.
pub struct MemoryContender {
    objects: Mutex<HashMap<u32, Bytes>>,
    wrong: Option<u32>,
}

impl MemoryContender {
    /// Makes an empty table, which returns a wrong last byte for the object `wrong`.
    pub fn new(wrong: Option<u32>) -> MemoryContender {
        MemoryContender { objects: Mutex::default(), wrong }
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ContenderStorage for MemoryContender {
    fn get(&self, request: &ProxyRequest) -> Result<Option<ObjectHit>, Error> {
        let Some(body) = self.objects().get(&request.object).cloned() else { return Ok(None) };
        let mut pieces = vec![body];
        if self.wrong == Some(request.object) {
            let mut damaged = pieces[0].to_vec();
            if let Some(last) = damaged.last_mut() {
                *last ^= 1;
            }
            pieces = vec![damaged.into()];
        }
        Ok(Some(ObjectHit { pieces, in_memory: true }))
    }

    fn put(&self, request: &ProxyRequest, body: Bytes) -> Result<(), Error> {
        self.objects().insert(request.object, body);
        Ok(())
    }

    fn delete(&self, request: &ProxyRequest) -> Result<(), Error> {
        self.objects().remove(&request.object);
        Ok(())
    }

    fn settle(&self) -> Result<(), Error> {
        Ok(())
    }

    fn counters(&self) -> serde_json::Value {
        serde_json::json!({ "objects": self.objects().len() })
    }
}
