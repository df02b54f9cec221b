//! Transactions: applying them to tables, their lengths, and grouping them into appends.

use crate::format::{FormatError, Mutation, MutationAction, ReplyRecord, TableKey, Transaction, TransactionKind};
use crate::tables::{MetadataTables, record_bytes};

/// The maximum number of transactions of an append.
const TRANSACTIONS_MAX: usize = 4096;
/// The maximum number of bytes of an append. *Units*: bytes.
const APPEND_BYTES_MAX: usize = 4 << 20;
/// The length of an append's header, before its transactions. *Units*: bytes.
const APPEND_HEADER_BYTES: usize = 128;
/// The length of a transaction's header, before its reply. *Units*: bytes.
const TRANSACTION_HEADER_BYTES: usize = 40;
/// The maximum length of the mutations that [`server_transactions`] puts into one transaction. *Units*: bytes.
const SPLIT_BYTES_MAX: usize = 512 << 10;
/// The maximum number of mutations that [`server_transactions`] puts into one transaction.
const SPLIT_MUTATIONS_MAX: usize = 8192;

/// Applies a transaction as replay does: its mutations in order, then its reply if a session caused the transaction. A
/// manifest changes no table.
///
/// *Errors*: the reply exceeds its bound; then nothing is changed.
pub fn apply(tables: &mut MetadataTables, transaction: &Transaction) -> Result<(), FormatError> {
    let reply = match transaction.kind {
        TransactionKind::Manifest => return Ok(()),
        TransactionKind::Server => None,
        TransactionKind::Operation => Some(ReplyRecord { status: 0, body: transaction.reply.clone() }.encode()?),
    };
    for mutation in &transaction.mutations {
        tables.apply(mutation);
    }
    if let Some(value) = reply {
        let key = TableKey::Reply(transaction.session, transaction.number);
        tables.apply(&Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(value) });
    }
    Ok(())
}

fn bytes_of(mutation: &Mutation) -> usize {
    let value = match &mutation.action {
        MutationAction::Put(value) => value.len(),
        MutationAction::Delete => 0,
    };
    record_bytes(mutation.key.len(), value)
}

/// Returns the length of a transaction within an append. *Units*: bytes.
pub fn transaction_bytes(transaction: &Transaction) -> usize {
    let mutations: usize = transaction.mutations.iter().map(bytes_of).sum();
    TRANSACTION_HEADER_BYTES + transaction.reply.len().next_multiple_of(8) + mutations
}

/// Returns the length of an append with these transactions. *Units*: bytes.
pub(super) fn append_bytes(transactions: &[Transaction]) -> usize {
    APPEND_HEADER_BYTES + transactions.iter().map(transaction_bytes).sum::<usize>()
}

/// Groups transactions, in order, so that each group fits an append.
pub(super) fn groups(transactions: Vec<Transaction>) -> Vec<Vec<Transaction>> {
    let mut groups: Vec<Vec<Transaction>> = Vec::new();
    let mut bytes = 0;
    for transaction in transactions {
        let length = transaction_bytes(&transaction);
        match groups.last_mut() {
            Some(group) if group.len() < TRANSACTIONS_MAX && bytes + length <= APPEND_BYTES_MAX => {
                group.push(transaction);
                bytes += length;
            }
            _ => {
                groups.push(vec![transaction]);
                bytes = APPEND_HEADER_BYTES + length;
            }
        }
    }
    groups
}

/// Transactions of the server with these mutations, in order.
pub(super) fn server_transactions(mutations: Vec<Mutation>) -> Vec<Transaction> {
    let mut transactions: Vec<Transaction> = Vec::new();
    let mut bytes = 0;
    for mutation in mutations {
        let length = bytes_of(&mutation);
        match transactions.last_mut() {
            Some(last) if bytes + length <= SPLIT_BYTES_MAX && last.mutations.len() < SPLIT_MUTATIONS_MAX => {
                last.mutations.push(mutation);
                bytes += length;
            }
            _ => {
                let (reply, mutations) = (Vec::new(), vec![mutation]);
                let kind = TransactionKind::Server;
                transactions.push(Transaction { kind, session: 0, number: 0, reply, mutations });
                bytes = length;
            }
        }
    }
    transactions
}
