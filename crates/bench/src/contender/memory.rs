//! A contender that is a table in memory. It shows the cost of the harness itself. For tests, it can also return a
//! wrong byte.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::{Found, Storage};
use crate::Error;
use crate::workload::Request;

/// Stores every object in memory.
pub struct Memory {
    objects: Mutex<HashMap<u32, Bytes>>,
    wrong: Option<u32>,
}

impl Memory {
    /// Makes an empty table, which returns a wrong last byte for the object `wrong`.
    pub fn new(wrong: Option<u32>) -> Memory {
        Memory { objects: Mutex::default(), wrong }
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for Memory {
    fn get(&self, request: &Request) -> Result<Option<Found>, Error> {
        let Some(body) = self.objects().get(&request.object).cloned() else { return Ok(None) };
        let mut pieces = vec![body];
        if self.wrong == Some(request.object) {
            let mut damaged = pieces[0].to_vec();
            if let Some(last) = damaged.last_mut() {
                *last ^= 1;
            }
            pieces = vec![damaged.into()];
        }
        Ok(Some(Found { pieces, in_memory: true }))
    }

    fn put(&self, request: &Request, body: Bytes) -> Result<(), Error> {
        self.objects().insert(request.object, body);
        Ok(())
    }

    fn delete(&self, request: &Request) -> Result<(), Error> {
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
