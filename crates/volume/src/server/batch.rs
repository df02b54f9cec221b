//! The next append: transactions that are applied and not stored yet.
//!
//! Owns: when a batch is full. If the journal is short of segments, a full batch still fits into half a segment.

use crate::format::Transaction;
use crate::journal::transaction_bytes;

/// The maximum number of transactions of an append.
const TRANSACTIONS_MAX: usize = 1024;
/// When the transactions are this long, no more requests are taken. *Units*: bytes.
const BYTES_MAX: usize = 3 << 20;

/// The transactions, in order.
#[derive(Default)]
pub(super) struct Batch {
    transactions: Vec<Transaction>,
    bytes: usize,
}

impl Batch {
    /// Adds a transaction.
    pub fn push(&mut self, transaction: Transaction) {
        self.bytes += transaction_bytes(&transaction);
        self.transactions.push(transaction);
    }

    /// Whether further requests must wait until these transactions are stored.
    pub fn is_full(&self) -> bool {
        self.transactions.len() >= TRANSACTIONS_MAX || self.bytes >= BYTES_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Takes all transactions, to store them.
    pub fn take(&mut self) -> Vec<Transaction> {
        self.bytes = 0;
        std::mem::take(&mut self.transactions)
    }
}

impl Extend<Transaction> for Batch {
    fn extend<T: IntoIterator<Item = Transaction>>(&mut self, transactions: T) {
        transactions.into_iter().for_each(|transaction| self.push(transaction));
    }
}
