//! The next append: transactions that are applied and not stored yet.
//!
//! Owns: when a batch is full, and how long it waits for more. If the journal is short of segments, a full batch still fits into half a segment.

use std::time::Duration;

use tokio::time::Instant;

use crate::format::Transaction;
#[cfg(test)]
use crate::format::TransactionKind;
use crate::journal::transaction_bytes;

/// The maximum number of transactions of an append.
const TRANSACTIONS_MAX: usize = 1024;
/// When the transactions are this long, no more requests are taken. *Units*: bytes.
const BYTES_MAX: usize = 3 << 20;

/// The longest time for which transactions wait for more, if nobody waits for them.
const DELAY: Duration = Duration::from_millis(5);

/// The transactions, in order.
#[derive(Default)]
pub(super) struct AppendBatch {
    transactions: Vec<Transaction>,
    bytes: usize,
    /// When the first one came.
    since: Option<Instant>,
}

impl AppendBatch {
    /// Adds a transaction.
    pub fn push(&mut self, transaction: Transaction) {
        self.bytes += transaction_bytes(&transaction);
        self.transactions.push(transaction);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether further requests must wait until these transactions are stored.
    pub fn is_full(&self) -> bool {
        self.transactions.len() >= TRANSACTIONS_MAX || self.bytes >= BYTES_MAX
    }

    /// Returns when the transactions have waited for long enough.
    pub fn due_at(&self) -> Option<Instant> {
        self.since.map(|since| since + DELAY)
    }

    /// Whether they wait for no more.
    pub fn is_due(&self) -> bool {
        self.is_empty() || self.is_full() || self.due_at().is_some_and(|due_at| Instant::now() >= due_at)
    }

    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Returns the sessions and numbers of the operations, in order.
    #[cfg(test)]
    pub fn operations(&self) -> impl Iterator<Item = (u64, u64)> {
        let operations = self.transactions.iter().filter(|one| one.kind == TransactionKind::Operation);
        operations.map(|one| (one.session, one.number))
    }

    /// Takes all transactions, to store them.
    pub fn take(&mut self) -> Vec<Transaction> {
        (self.bytes, self.since) = (0, None);
        std::mem::take(&mut self.transactions)
    }
}

impl Extend<Transaction> for AppendBatch {
    fn extend<T: IntoIterator<Item = Transaction>>(&mut self, transactions: T) {
        transactions.into_iter().for_each(|transaction| self.push(transaction));
    }
}
