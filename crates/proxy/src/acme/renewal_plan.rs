//! When the certificate of a name is ordered, renewed, looked at, written and read again.
//!
//! Owns: the decision. It is a plain state machine: moments and events in, steps out; no clock, no I/O, no randomness of
//! its own.
//!
//! A certificate is renewed when a third of its lifetime is left, or earlier if the authority suggests that (ARI, RFC
//! 9773), for example because it has revoked the certificate. Two clocks decide: the system's clock says what is due,
//! and a clock that only goes forward measures the pauses.
//!
//! | the certificate | is ordered |
//! |---|---|
//! | is absent, or its renewal is due | at once, unless a pause after a failure lasts |
//! | was just issued, and its renewal is due already | after a pause that grows: the clock is wrong, or the authority |
//! | is not valid yet | not at all: a new one would not be valid either |
//! | cannot be read | not at all, until its file can be read or is missing |
//!
//! A suggestion in the past is how an authority tells of a revocation, so it is followed at once; but an authority that
//! always suggests the past gets an order only every [`SUGGESTION_TIME`]. In the same way a reload hastens an attempt
//! only every [`HURRY_TIME`], because authorities allow few failures in an hour.

use std::time::Duration;

/// The time between two looks at what the authority suggests, if it names none; and the bounds of what it may name.
const LOOK_TIME: Duration = Duration::from_secs(6 * 3600);
const LOOK_TIME_MIN: Duration = Duration::from_secs(600);
const LOOK_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// The time after which a certificate that could not be written is written again.
const SAVE_TIME: Duration = Duration::from_secs(300);

/// The longest pause that an authority can ask for, and that is taken over from an earlier process.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(48 * 3600);

/// The time between two attempts, or two looks, at a name that reloads have hastened.
const HURRY_TIME: Duration = Duration::from_secs(900);

/// The time after a renewal that was suggested in which no other suggestion is followed.
const SUGGESTION_TIME: Duration = Duration::from_secs(24 * 3600);

/// A moment on two clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenewalMoment {
    /// The system's clock. *Units*: Unix seconds.
    pub unix_s: i64,
    /// A clock that only goes forward.
    pub uptime: Duration,
}

/// When a certificate is valid. *Units*: Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CertificateValidity {
    pub not_before_s: i64,
    pub not_after_s: i64,
}

impl CertificateValidity {
    /// When a third of the lifetime is left.
    pub fn renewal_s(self) -> i64 {
        self.not_after_s.saturating_sub(self.lifetime_s() / 3)
    }

    /// Whether so little of the lifetime is left that a renewal must have failed.
    pub fn is_late(self, unix_s: i64) -> bool {
        unix_s >= self.not_after_s.saturating_sub(self.lifetime_s() / 6)
    }

    fn lifetime_s(self) -> i64 {
        self.not_after_s.saturating_sub(self.not_before_s).max(0)
    }
}

/// The pauses after failures: each is twice the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRule {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for RetryRule {
    fn default() -> RetryRule {
        RetryRule { first: Duration::from_secs(60), longest: Duration::from_secs(6 * 3600) }
    }
}

impl RetryRule {
    /// The pause after this number of failures in a row, a fifth more or less by `chance`, which is 0 to 1.
    pub(crate) fn pause(&self, failures: u32, chance: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(24);
        let pause = self.first.saturating_mul(1 << doublings).min(self.longest);
        pause.mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0))
    }
}

/// What is to be done for a name. What comes first here is done first: writing takes hardly any time, and an authority
/// that is silent when it is asked what it suggests delays no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RenewalStep {
    /// Read the certificate again.
    Read,
    /// Write the certificate again.
    Save,
    /// Order a certificate.
    Order,
    /// Ask the authority when it suggests to renew.
    Look,
}

/// The step that is done next, with the index of its plan. Of several, that of the name that has failed least, so names
/// that fail again and again, and slowly, keep no other waiting.
pub(crate) fn next_step<'a>(
    plans: impl Iterator<Item = &'a RenewalPlan>,
    now: RenewalMoment,
) -> Option<(usize, RenewalStep)> {
    let steps = plans.enumerate().filter_map(|(index, plan)| Some((index, plan.step(now)?, plan.failures)));
    let next = steps.min_by_key(|(_, step, failures)| (*step, *failures));
    next.map(|(index, step, _)| (index, step))
}

/// The pauses that outlive the process, as the time that is left of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeftPauses {
    /// How often ordering has failed in a row.
    pub failures: u32,
    /// No certificate is ordered.
    pub order: Duration,
    /// No suggestion is followed.
    pub suggestion: Duration,
    /// No reload hastens an order.
    pub hurry: Duration,
}

/// What is known of a name.
#[derive(Debug, Clone, Default)]
pub(crate) struct RenewalPlan {
    validity: Option<CertificateValidity>,
    /// When the authority suggests to renew.
    suggested_s: Option<i64>,
    failures: u32,
    paused_until: Duration,
    look_at: Duration,
    save_at: Option<Duration>,
    /// When the certificate is read again, if it could not be read.
    read_at: Option<Duration>,
    /// From when on a suggestion is followed.
    suggestion_from: Duration,
    /// From when on a reload hastens an order, and a look.
    hurry_from: Duration,
    hurry_look_from: Duration,
}

impl RenewalPlan {
    /// A name with the certificate that was found.
    pub fn new(validity: Option<CertificateValidity>) -> RenewalPlan {
        RenewalPlan { validity, ..RenewalPlan::default() }
    }

    /// A name whose certificate could not be read.
    pub fn unreadable(now: RenewalMoment, rule: &RetryRule) -> RenewalPlan {
        RenewalPlan { read_at: Some(now.uptime.saturating_add(rule.first)), ..RenewalPlan::default() }
    }

    /// Whether the certificate could not be read.
    pub fn is_unreadable(&self) -> bool {
        self.read_at.is_some()
    }

    /// Takes over the pauses of an earlier process.
    pub fn resume(&mut self, left: LeftPauses, now: RenewalMoment) {
        let until = |left: Duration| now.uptime.saturating_add(left.min(PAUSE_MAX));
        self.failures = left.failures;
        self.paused_until = until(left.order);
        self.suggestion_from = until(left.suggestion);
        self.hurry_from = until(left.hurry);
    }

    /// The pauses for a later process.
    pub fn left(&self, now: RenewalMoment) -> LeftPauses {
        LeftPauses {
            failures: self.failures,
            order: self.paused_until.saturating_sub(now.uptime),
            suggestion: self.suggestion_from.saturating_sub(now.uptime),
            hurry: self.hurry_from.saturating_sub(now.uptime),
        }
    }

    /// The pauses for a later process, if this one ends in the attempt that begins now.
    pub fn left_in_attempt(&self, now: RenewalMoment, rule: &RetryRule) -> LeftPauses {
        let failures = self.failures.saturating_add(1);
        LeftPauses { failures, order: rule.pause(failures, 0.5), ..self.left(now) }
    }

    /// How often ordering has failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When the certificate is renewed; `None` if there is none. *Units*: Unix seconds.
    pub fn renewal_s(&self, now: RenewalMoment) -> Option<i64> {
        let by_age = self.validity?.renewal_s();
        let suggested =
            self.suggested_s.map(|suggested_s| match seconds_up(self.suggestion_from.saturating_sub(now.uptime)) {
                0 => suggested_s,
                left_s => suggested_s.max(now.unix_s.saturating_add(left_s)),
            });
        Some(suggested.map_or(by_age, |suggested_s| suggested_s.min(by_age)))
    }

    /// How long it takes until the next attempt, or until the certificate is read again.
    pub fn pause_left(&self, now: RenewalMoment) -> Duration {
        self.read_at.unwrap_or(self.paused_until).saturating_sub(now.uptime)
    }

    /// Whether there is no certificate, or it is time to renew it.
    pub fn is_due(&self, now: RenewalMoment) -> bool {
        self.renewal_s(now).is_none_or(|renewal_s| now.unix_s >= renewal_s)
    }

    /// What is to be done now.
    pub fn step(&self, now: RenewalMoment) -> Option<RenewalStep> {
        if let Some(read_at) = self.read_at {
            return (now.uptime >= read_at).then_some(RenewalStep::Read);
        }
        if self.is_due(now) && now.uptime >= self.paused_until {
            return Some(RenewalStep::Order);
        }
        if self.save_at.is_some_and(|save_at| now.uptime >= save_at) {
            return Some(RenewalStep::Save);
        }
        (self.validity.is_some() && now.uptime >= self.look_at).then_some(RenewalStep::Look)
    }

    /// How long nothing is to be done, if neither clock is set.
    pub fn idle_time(&self, now: RenewalMoment) -> Duration {
        if self.read_at.is_some() {
            return self.pause_left(now);
        }
        let order_in = match self.renewal_s(now) {
            Some(renewal_s) if renewal_s > now.unix_s => {
                let due_in = Duration::from_secs(renewal_s.saturating_sub(now.unix_s).unsigned_abs());
                due_in.max(self.pause_left(now))
            }
            _ => self.pause_left(now),
        };
        let look_in = self.validity.map_or(Duration::MAX, |_| self.look_at.saturating_sub(now.uptime));
        let save_in = self.save_at.map_or(Duration::MAX, |save_at| save_at.saturating_sub(now.uptime));
        order_in.min(look_in).min(save_in)
    }

    /// A certificate was issued. *Returns*: whether it is of use; if its renewal is due at once, it counts as a failure.
    pub fn on_issued(
        &mut self,
        validity: CertificateValidity,
        now: RenewalMoment,
        rule: &RetryRule,
        chance: f64,
    ) -> bool {
        let is_by_suggestion = self.validity.is_some_and(|old| now.unix_s < old.renewal_s());
        if is_by_suggestion {
            self.suggestion_from = now.uptime.saturating_add(SUGGESTION_TIME);
        }
        self.validity = Some(validity);
        self.suggested_s = None;
        self.look_at = now.uptime.saturating_add(LOOK_TIME);
        if self.is_due(now) {
            self.on_failed(now, rule, chance, None);
            return false;
        }
        self.failures = 0;
        // Whatever lifetimes an authority gives, there is a pause between two orders.
        self.paused_until = now.uptime.saturating_add(rule.first);
        true
    }

    /// An order has failed. `at_least` is the pause that the authority asks for.
    pub fn on_failed(&mut self, now: RenewalMoment, rule: &RetryRule, chance: f64, at_least: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        let asked = at_least.unwrap_or_default().min(PAUSE_MAX);
        self.paused_until = now.uptime.saturating_add(rule.pause(self.failures, chance).max(asked));
    }

    /// Nothing may be ordered for a while, for a reason that is no failure of this name.
    pub fn wait(&mut self, left: Duration, now: RenewalMoment) {
        self.paused_until = self.paused_until.max(now.uptime.saturating_add(left));
    }

    /// The authority suggests to renew between two moments (Unix seconds), or suggests nothing; and to ask again after
    /// a time.
    pub fn on_suggested(
        &mut self,
        window_s: Option<(i64, i64)>,
        again: Option<Duration>,
        now: RenewalMoment,
        chance: f64,
    ) {
        if let Some((start_s, end_s)) = window_s {
            let width_s = end_s.saturating_sub(start_s).max(0);
            let part_s = (width_s as f64 * chance.clamp(0.0, 1.0)) as i64;
            self.suggested_s = Some(start_s.saturating_add(part_s));
        }
        let again = again.unwrap_or(LOOK_TIME).clamp(LOOK_TIME_MIN, LOOK_TIME_MAX);
        self.look_at = now.uptime.saturating_add(again);
    }

    /// The certificate was written, or could not be.
    pub fn on_saved(&mut self, is_saved: bool, now: RenewalMoment) {
        self.save_at = (!is_saved).then(|| now.uptime.saturating_add(SAVE_TIME));
    }

    /// The operator has asked for a reload: what has failed is tried at once, unless it is to wait, as when the
    /// authority has asked for a pause, or another reload has hastened it less than [`HURRY_TIME`] ago. That does not
    /// count if `is_changed`: an order is made in another way now.
    pub fn hurry(&mut self, now: RenewalMoment, is_to_wait: bool, is_changed: bool) {
        self.save_at = self.save_at.map(|save_at| save_at.min(now.uptime));
        self.read_at = self.read_at.map(|read_at| read_at.min(now.uptime));
        let is_paused = self.failures > 0 && self.paused_until > now.uptime;
        if is_paused && !is_to_wait && (is_changed || now.uptime >= self.hurry_from) {
            self.paused_until = now.uptime;
            self.hurry_from = now.uptime.saturating_add(HURRY_TIME);
        }
        if self.look_at > now.uptime && now.uptime >= self.hurry_look_from {
            self.look_at = now.uptime;
            self.hurry_look_from = now.uptime.saturating_add(HURRY_TIME);
        }
    }
}

/// A time in seconds, rounded up.
pub(crate) fn seconds_up(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX).saturating_add(i64::from(time.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_S: i64 = 86_400;
    const RULE: RetryRule = RetryRule { first: Duration::from_secs(60), longest: Duration::from_secs(6 * 3600) };

    fn at(unix_s: i64, uptime_s: u64) -> RenewalMoment {
        RenewalMoment { unix_s, uptime: Duration::from_secs(uptime_s) }
    }

    fn days(from: i64, to: i64) -> CertificateValidity {
        CertificateValidity { not_before_s: from * DAY_S, not_after_s: to * DAY_S }
    }

    #[test]
    fn renewal_is_at_a_third() {
        let mut plan = RenewalPlan::new(Some(days(0, 90)));
        plan.on_suggested(None, None, at(0, 0), 0.5);
        assert_eq!(plan.renewal_s(at(0, 0)), Some(60 * DAY_S));
        assert_eq!(plan.step(at(60 * DAY_S - 1, 1)), None);
        assert_eq!(plan.step(at(60 * DAY_S, 1)), Some(RenewalStep::Order));
        assert!(!days(0, 90).is_late(75 * DAY_S - 1) && days(0, 90).is_late(75 * DAY_S));
    }

    #[test]
    fn pauses_double_up_to_their_limit() {
        let pauses: Vec<u64> = (1..12).map(|failures| RULE.pause(failures, 0.5).as_secs()).collect();
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, 21600, 21600]);
        assert_eq!(RULE.pause(u32::MAX, 0.5).as_secs(), 21600);
        assert_eq!((RULE.pause(1, 0.0).as_secs(), RULE.pause(1, 1.0).as_secs()), (48, 72));
    }

    #[test]
    fn missing_certificates_are_ordered_at_once() {
        let mut plan = RenewalPlan::new(None);
        assert_eq!(plan.step(at(0, 0)), Some(RenewalStep::Order));
        plan.on_failed(at(0, 0), &RULE, 0.5, None);
        assert_eq!((plan.step(at(0, 59)), plan.step(at(0, 60))), (None, Some(RenewalStep::Order)));
        assert_eq!(plan.idle_time(at(0, 20)), Duration::from_secs(40));
        plan.on_failed(at(0, 60), &RULE, 0.5, Some(Duration::from_secs(3600)));
        assert_eq!((plan.step(at(0, 3659)), plan.step(at(0, 3660))), (None, Some(RenewalStep::Order)));
        assert_eq!(plan.failures(), 2);
        assert!(plan.on_issued(days(0, 90), at(0, 3660), &RULE, 0.5));
        assert_eq!((plan.failures(), plan.step(at(0, 3661))), (0, None));
    }

    /// The clock is years ahead, so each certificate has ended when it comes.
    #[test]
    fn clock_ahead_does_not_loop() {
        let now = 20_000 * DAY_S;
        let mut plan = RenewalPlan::new(Some(days(0, 90)));
        let (mut uptime, mut orders) = (0, 0);
        while uptime < 7 * 86_400 {
            if plan.step(at(now, uptime)) == Some(RenewalStep::Order) {
                orders += 1;
                assert!(!plan.on_issued(days(0, 90), at(now, uptime), &RULE, 0.5));
            }
            uptime += 1;
        }
        assert!((30..50).contains(&orders), "{orders} orders in a week");
    }

    #[test]
    fn what_is_not_valid_yet_waits() {
        let mut plan = RenewalPlan::new(Some(days(100, 190)));
        plan.on_suggested(None, None, at(0, 0), 0.5);
        assert_eq!(plan.step(at(0, 1)), None);
    }

    #[test]
    fn suggestions_only_hasten_a_renewal() {
        let mut plan = RenewalPlan::new(Some(days(0, 90)));
        assert_eq!(plan.step(at(DAY_S, 0)), Some(RenewalStep::Look));
        plan.on_suggested(Some((70 * DAY_S, 80 * DAY_S)), None, at(DAY_S, 0), 0.5);
        assert_eq!(plan.renewal_s(at(DAY_S, 0)), Some(60 * DAY_S));
        plan.on_suggested(Some((10 * DAY_S, 20 * DAY_S)), None, at(DAY_S, 0), 0.5);
        assert_eq!(plan.renewal_s(at(DAY_S, 0)), Some(15 * DAY_S));
        // A revoked certificate is replaced at once; what is suggested after that is asked for later.
        plan.on_suggested(Some((-5, -4)), None, at(DAY_S, 0), 0.5);
        assert_eq!(plan.step(at(DAY_S, 0)), Some(RenewalStep::Order));
        assert!(plan.on_issued(days(1, 91), at(DAY_S, 0), &RULE, 0.5));
        assert_eq!(plan.step(at(DAY_S, 3600)), None);
        assert_eq!(plan.step(at(DAY_S, 6 * 3600)), Some(RenewalStep::Look));
    }

    #[test]
    fn reload_tries_failures_at_once() {
        let mut plan = RenewalPlan::new(None);
        plan.on_failed(at(0, 0), &RULE, 0.5, None);
        plan.hurry(at(0, 1), true, true);
        assert_eq!(plan.step(at(0, 1)), None);
        plan.hurry(at(0, 1), false, false);
        assert_eq!((plan.step(at(0, 1)), plan.failures()), (Some(RenewalStep::Order), 1));
        // The next one within a quarter of an hour counts only with other options.
        plan.on_failed(at(0, 1), &RULE, 0.5, Some(PAUSE_MAX));
        for (uptime, is_changed, step) in [
            (2, false, None),
            (900, false, None),
            (3, true, Some(RenewalStep::Order)),
            (901, false, Some(RenewalStep::Order)),
        ] {
            let mut plan = plan.clone();
            plan.hurry(at(0, uptime), false, is_changed);
            assert_eq!(plan.step(at(0, uptime)), step, "{uptime} {is_changed}");
        }
    }

    /// A reload each minute, as some generators of configurations make them.
    #[test]
    fn reload_storm_asks_seldom() {
        let (mut plan, mut good) = (RenewalPlan::new(None), RenewalPlan::new(Some(days(0, 90))));
        let (mut orders, mut looks) = (Vec::new(), 0);
        for uptime in 0..86_400 {
            let now = at(DAY_S, uptime);
            if uptime % 60 == 0 {
                plan.hurry(now, false, false);
                good.hurry(now, false, false);
            }
            if plan.step(now) == Some(RenewalStep::Order) {
                orders.push(uptime);
                plan.on_failed(now, &RULE, 0.5, None);
            }
            if good.step(now) == Some(RenewalStep::Look) {
                looks += 1;
                good.on_suggested(None, None, now, 0.5);
            }
        }
        let late = orders.iter().filter(|uptime| **uptime >= 7200).count();
        assert!((80..=89).contains(&late), "{late} of {} attempts in 22 hours", orders.len());
        assert!((90..=98).contains(&looks), "{looks} looks in a day");
    }

    #[test]
    fn endless_suggestions_are_followed_once_daily() {
        let mut plan = RenewalPlan::new(Some(days(0, 90)));
        let mut orders = Vec::new();
        for hour in 0..7 * 24 {
            let now = at(DAY_S + hour * 3600, hour as u64 * 3600);
            match plan.step(now) {
                Some(RenewalStep::Order) => {
                    orders.push(hour);
                    assert!(plan.on_issued(days(1, 91), now, &RULE, 0.5));
                }
                Some(RenewalStep::Look) => plan.on_suggested(Some((-5, -4)), None, now, 0.5),
                _ => {}
            }
        }
        // The first is at once: it can be a revocation.
        assert_eq!(orders, [1, 25, 49, 73, 97, 121, 145]);
    }

    #[test]
    fn pauses_outlive_the_process() {
        let mut plan = RenewalPlan::new(None);
        plan.on_failed(at(0, 0), &RULE, 0.5, None);
        plan.hurry(at(0, 10), false, false);
        plan.on_failed(at(0, 10), &RULE, 0.5, None);
        let left = plan.left(at(0, 20));
        assert_eq!((left.failures, left.order.as_secs(), left.hurry.as_secs()), (2, 110, 890));
        assert_eq!(plan.left_in_attempt(at(0, 20), &RULE).order.as_secs(), 240);
        let mut later = RenewalPlan::new(None);
        later.resume(left, at(0, 1));
        assert_eq!((later.step(at(0, 110)), later.step(at(0, 111))), (None, Some(RenewalStep::Order)));
        later.hurry(at(0, 50), false, false);
        assert_eq!((later.step(at(0, 50)), later.failures()), (None, 2));
        later.resume(LeftPauses { order: Duration::MAX, ..left }, at(0, 1));
        assert_eq!(later.pause_left(at(0, 1)), PAUSE_MAX);
    }

    #[test]
    fn asked_pause_outlasts_the_longest_own() {
        let mut plan = RenewalPlan::new(None);
        plan.on_failed(at(0, 0), &RULE, 0.5, Some(Duration::from_secs(24 * 3600)));
        assert_eq!((plan.step(at(0, 86_399)), plan.step(at(0, 86_400))), (None, Some(RenewalStep::Order)));
    }

    #[test]
    fn wait_shortens_no_pause() {
        let mut plan = RenewalPlan::new(None);
        plan.on_failed(at(0, 0), &RULE, 0.5, Some(Duration::from_secs(3600)));
        plan.wait(Duration::from_secs(10), at(0, 0));
        assert_eq!((plan.step(at(0, 3599)), plan.step(at(0, 3600))), (None, Some(RenewalStep::Order)));
        plan.wait(Duration::from_secs(7200), at(0, 0));
        assert_eq!((plan.step(at(0, 7199)), plan.failures()), (None, 1));
    }

    #[test]
    fn unreadable_certificates_are_not_ordered() {
        let mut plan = RenewalPlan::unreadable(at(0, 5), &RULE);
        assert_eq!((plan.step(at(0, 64)), plan.step(at(0, 65))), (None, Some(RenewalStep::Read)));
        assert_eq!(plan.idle_time(at(0, 25)), Duration::from_secs(40));
        plan.hurry(at(0, 6), false, false);
        assert_eq!(plan.step(at(0, 6)), Some(RenewalStep::Read));
    }

    #[test]
    fn orders_come_before_looks() {
        let now = at(DAY_S, 0);
        let mut plans = [RenewalPlan::new(Some(days(0, 90))), RenewalPlan::new(None), RenewalPlan::new(None)];
        assert_eq!(next_step(plans.iter(), now), Some((1, RenewalStep::Order)));
        // What failed before waits for what did not.
        plans[1].failures = 1;
        assert_eq!(next_step(plans.iter(), now), Some((2, RenewalStep::Order)));
        plans[0].on_suggested(None, None, now, 0.5);
        plans[0].save_at = Some(now.uptime);
        assert_eq!(next_step(plans.iter(), now), Some((0, RenewalStep::Save)));
        assert_eq!(
            (next_step(plans[..0].iter(), now), next_step(plans[..1].iter(), at(DAY_S, 0))),
            (None, Some((0, RenewalStep::Save)))
        );
    }

    #[test]
    fn failed_save_is_retried_later() {
        let mut plan = RenewalPlan::new(Some(days(0, 90)));
        plan.on_suggested(None, None, at(0, 0), 0.5);
        plan.on_saved(false, at(0, 0));
        assert_eq!((plan.step(at(0, 299)), plan.step(at(0, 300))), (None, Some(RenewalStep::Save)));
        plan.on_saved(true, at(0, 300));
        assert_eq!(plan.step(at(0, 301)), None);
    }

    proptest! {
        /// No figures, however wild, panic or make a plan that is never idle and does nothing.
        #[test]
        fn any_figures_make_a_plan(
            validity in proptest::option::of((any::<i64>(), any::<i64>())),
            window in proptest::option::of((any::<i64>(), any::<i64>())),
            moment in (any::<i64>(), any::<u64>()),
            failures in 0_u32..100,
            chance in 0.0..=1.0_f64,
            asked in proptest::option::of(any::<u64>()),
        ) {
            let validity = validity.map(|(not_before_s, not_after_s)| CertificateValidity { not_before_s, not_after_s });
            let mut plan = RenewalPlan::new(validity);
            let now = at(moment.0, moment.1);
            plan.failures = failures;
            let asked = asked.map(Duration::from_secs);
            plan.on_failed(now, &RULE, chance, asked);
            plan.on_suggested(window, asked, now, chance);
            plan.on_saved(false, now);
            let idle = plan.idle_time(now);
            prop_assert!(plan.step(now).is_some() || !idle.is_zero());
            plan.hurry(now, false, false);
            prop_assert!(plan.step(now).is_some());
        }
    }
}
