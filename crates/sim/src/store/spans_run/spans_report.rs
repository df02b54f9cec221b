//! What a run of spans is given, and what it counts.

/// What to run.
#[derive(Debug, Clone)]
pub struct SpansOptions {
    /// The seed.
    pub seed: u64,
    /// The number of stores to run, one after another.
    pub stores: u64,
    /// The number of losses, returns, ends and crashes of each store.
    pub events: u64,
    /// The number of keys.
    pub keys: u32,
    /// Whether to stop at the first difference.
    pub stops_at_difference: bool,
}

/// The results of a run.
#[derive(Debug, Default, Clone)]
pub struct SpansReport {
    /// Operations done.
    pub operations: u64,
    /// Gets that hit with allowed bytes.
    pub hits: u64,
    /// Gets that missed.
    pub misses: u64,
    /// Spans lost while the store served.
    pub losses: u64,
    /// Spans that returned.
    pub returns: u64,
    /// Spans that failed during a purge: for good, and for a few operations.
    pub failed_in_purge: [u64; 2],
    /// Opens without a span that had failed during a purge that returned; each had to succeed.
    pub opened_without: u64,
    /// Ends by a kill, by a clean stop, and by a loss of power.
    pub ends: [u64; 3],
    /// Spans restored from older copies: from copies made before the last open, and from copies made since then.
    pub put_back: [u64; 2],
    /// Opens that a crash interrupted.
    pub torn_opens: u64,
    /// Opens that were refused because the missing spans may have been used without the others.
    pub refused: u64,
    /// Gets that had to hit, because their span was not the lost one.
    pub demanded: u64,
    /// Gets that had to hit after an end, because all spans were there.
    pub demanded_after_end: u64,
    /// Gets that had to hit and missed.
    pub demanded_missing: u64,
    /// The answers that differ from the model.
    pub differences: Vec<String>,
}
