//! The situations that runs are meant to reach, and how often they did.
//!
//! Owns: the list of situations. A check proves nothing about a situation that its runs never reach, so a count of zero
//! fails ([`SituationCounts::missing`]).

/// A situation of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientSituation {
    /// A get was not polled for a while, and then ended.
    GetResumed,
    /// A get was not polled for a while, and then dropped.
    GetDropped,
    /// A sync was not polled for a while, and then ended.
    SyncResumed,
    /// A sync was not polled for a while, and then dropped.
    SyncDropped,
    /// A fill was not polled for a while, and then ended.
    FillResumed,
    /// A fill was not polled for a while, and then dropped.
    FillDropped,
    /// A put was not polled for a while, and then ended.
    PutResumed,
    /// A put was not polled for a while, and then dropped.
    PutDropped,
    /// A purge was not polled for a while, and then ended.
    PurgeResumed,
    /// A purge was not polled for a while, and then dropped.
    PurgeDropped,
    /// A sync began while the device was being flushed, and an object was not written yet.
    SyncDuringFlush,
    /// A fill was finished after a version that began later had been accepted.
    FillOvertaken,
    /// A name was purged whose only object was in memory alone.
    PurgedInMemoryAlone,
    /// A purge returned between the end of a read and the object's entry into memory, while another get waited for
    /// that read.
    PurgedBeforeEntry,
}

impl ClientSituation {
    /// Every situation, with its description.
    const ALL: [(ClientSituation, &str); 14] = [
        (ClientSituation::GetResumed, "gets left unpolled and resumed"),
        (ClientSituation::GetDropped, "gets left unpolled and dropped"),
        (ClientSituation::SyncResumed, "syncs left unpolled and resumed"),
        (ClientSituation::SyncDropped, "syncs left unpolled and dropped"),
        (ClientSituation::FillResumed, "fills left unpolled and resumed"),
        (ClientSituation::FillDropped, "fills left unpolled and dropped"),
        (ClientSituation::PutResumed, "puts left unpolled and resumed"),
        (ClientSituation::PutDropped, "puts left unpolled and dropped"),
        (ClientSituation::PurgeResumed, "purges left unpolled and resumed"),
        (ClientSituation::PurgeDropped, "purges left unpolled and dropped"),
        (ClientSituation::SyncDuringFlush, "syncs begun during a flush that does not cover them"),
        (ClientSituation::FillOvertaken, "fills overtaken by a newer version"),
        (ClientSituation::PurgedInMemoryAlone, "purges of a name in memory alone"),
        (ClientSituation::PurgedBeforeEntry, "purges between a read and its entry into memory"),
    ];
}

/// How often each situation was reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SituationCounts([u64; ClientSituation::ALL.len()]);

impl SituationCounts {
    /// Counts a situation.
    pub fn note(&mut self, situation: ClientSituation) {
        self.0[situation as usize] += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &SituationCounts) {
        self.0.iter_mut().zip(&other.0).for_each(|(count, other)| *count += other);
    }

    /// The situations that were never reached.
    pub fn missing(&self) -> Vec<&'static str> {
        self.counts().filter(|(count, _)| *count == 0).map(|(_, description)| description).collect()
    }

    /// All counts, in words.
    pub fn describe(&self) -> String {
        self.counts().map(|(count, description)| format!("{count} {description}")).collect::<Vec<_>>().join(", ")
    }

    fn counts(&self) -> impl Iterator<Item = (u64, &'static str)> {
        ClientSituation::ALL.iter().map(|(situation, description)| (self.0[*situation as usize], *description))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn situation_without_count_is_missing() {
        let mut situations = SituationCounts::default();
        assert_eq!(situations.missing().len(), ClientSituation::ALL.len());
        for (at, (situation, description)) in ClientSituation::ALL.into_iter().enumerate() {
            assert_eq!(situation as usize, at);
            assert!(situations.missing().contains(&description));
            situations.note(situation);
            assert!(!situations.missing().contains(&description));
        }
        let mut sum = situations.clone();
        sum.add(&situations);
        assert!(sum.describe().starts_with("2 gets"), "{}", sum.describe());
    }
}
