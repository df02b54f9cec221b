//! The counters of a session, for its status.

/// The counters of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFigures {
    /// The number of the session.
    pub session: u64,
    /// The epoch of the server.
    pub epoch: u64,
    /// The number of operations answered.
    pub operations: u64,
    /// The number of these that the session did itself.
    pub local: u64,
    /// The number of directories in which it makes and removes names itself.
    pub local_directories: usize,
    /// The number of questions answered.
    pub questions: u64,
    /// The number of operations and questions without an answer.
    pub waiting: usize,
    /// The number of reconnections.
    pub reconnections: u64,
    /// `None` while the connections work; otherwise what is wrong, and when the next attempt is.
    pub trouble: Option<ConnectionTrouble>,
    /// The number of calls that the server did not take, and that failed for this reason.
    pub refused: u64,
    /// The number of operations that are answered and not known to be durable.
    pub unstored: usize,
    /// The number of changes of names that were answered and may be lost, because the session ended.
    pub lost: u64,
    /// Why the last such call failed, if that was recently.
    pub refusal: Option<String>,
    /// The reason why the session ended, if it has.
    pub ended: Option<String>,
}

/// Why there is no working connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionTrouble {
    /// The problem, for people.
    pub what: String,
    /// Whether the server could be reached.
    pub is_reachable: bool,
}
