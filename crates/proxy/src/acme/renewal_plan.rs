//! When the certificate of a name is ordered, renewed, looked at and written.
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

use std::time::Duration;

/// The time between two looks at what the authority suggests, if it names none; and the bounds of what it may name.
const LOOK_TIME: Duration = Duration::from_secs(6 * 3600);
const LOOK_TIME_MIN: Duration = Duration::from_secs(600);
const LOOK_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// The time after which a certificate that could not be written is written again.
const SAVE_TIME: Duration = Duration::from_secs(300);

/// The longest pause that an authority can ask for.
const PAUSE_MAX: Duration = Duration::from_secs(48 * 3600);

/// A moment on two clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// The system's clock. *Units*: Unix seconds.
    pub unix_s: i64,
    /// A clock that only goes forward.
    pub uptime: Duration,
}

/// When a certificate is valid. *Units*: Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub not_before_s: i64,
    pub not_after_s: i64,
}

impl Validity {
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
pub(crate) enum Step {
    /// Write the certificate again.
    Save,
    /// Order a certificate.
    Order,
    /// Ask the authority when it suggests to renew.
    Look,
}

/// The step that is done next, with the index of its plan. Of several, that of the name that has failed least, so names
/// that fail again and again, and slowly, keep no other waiting.
pub(crate) fn next_step<'a>(plans: impl Iterator<Item = &'a RenewalPlan>, now: Moment) -> Option<(usize, Step)> {
    let steps = plans.enumerate().filter_map(|(index, plan)| Some((index, plan.step(now)?, plan.failures)));
    let next = steps.min_by_key(|(_, step, failures)| (*step, *failures));
    next.map(|(index, step, _)| (index, step))
}

/// What is known of a name.
#[derive(Debug, Clone, Default)]
pub(crate) struct RenewalPlan {
    validity: Option<Validity>,
    /// When the authority suggests to renew.
    suggested_s: Option<i64>,
    failures: u32,
    paused_until: Duration,
    look_at: Duration,
    save_at: Option<Duration>,
}

impl RenewalPlan {
    /// A name with the certificate that was found.
    pub fn new(validity: Option<Validity>) -> RenewalPlan {
        RenewalPlan { validity, ..RenewalPlan::default() }
    }

    /// How often ordering has failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When the certificate is renewed; `None` if there is none. *Units*: Unix seconds.
    pub fn renewal_s(&self) -> Option<i64> {
        let by_age = self.validity?.renewal_s();
        Some(self.suggested_s.map_or(by_age, |suggested| suggested.min(by_age)))
    }

    /// How long it takes until the next attempt.
    pub fn pause_left(&self, now: Moment) -> Duration {
        self.paused_until.saturating_sub(now.uptime)
    }

    /// Whether there is no certificate, or it is time to renew it.
    pub fn is_due(&self, now: Moment) -> bool {
        self.renewal_s().is_none_or(|renewal_s| now.unix_s >= renewal_s)
    }

    /// What is to be done now.
    pub fn step(&self, now: Moment) -> Option<Step> {
        if self.is_due(now) && now.uptime >= self.paused_until {
            return Some(Step::Order);
        }
        if self.save_at.is_some_and(|save_at| now.uptime >= save_at) {
            return Some(Step::Save);
        }
        (self.validity.is_some() && now.uptime >= self.look_at).then_some(Step::Look)
    }

    /// How long nothing is to be done, if neither clock is set.
    pub fn idle_time(&self, now: Moment) -> Duration {
        let order_in = match self.renewal_s() {
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
    pub fn on_issued(&mut self, validity: Validity, now: Moment, rule: &RetryRule, chance: f64) -> bool {
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
    pub fn on_failed(&mut self, now: Moment, rule: &RetryRule, chance: f64, at_least: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        let asked = at_least.unwrap_or_default().min(PAUSE_MAX);
        self.paused_until = now.uptime.saturating_add(rule.pause(self.failures, chance).max(asked));
    }

    /// The authority suggests to renew between two moments (Unix seconds), or suggests nothing; and to ask again after
    /// a time.
    pub fn on_suggested(&mut self, window_s: Option<(i64, i64)>, again: Option<Duration>, now: Moment, chance: f64) {
        if let Some((start_s, end_s)) = window_s {
            let width_s = end_s.saturating_sub(start_s).max(0);
            let part_s = (width_s as f64 * chance.clamp(0.0, 1.0)) as i64;
            self.suggested_s = Some(start_s.saturating_add(part_s));
        }
        let again = again.unwrap_or(LOOK_TIME).clamp(LOOK_TIME_MIN, LOOK_TIME_MAX);
        self.look_at = now.uptime.saturating_add(again);
    }

    /// The certificate was written, or could not be.
    pub fn on_saved(&mut self, is_saved: bool, now: Moment) {
        self.save_at = (!is_saved).then(|| now.uptime.saturating_add(SAVE_TIME));
    }

    /// The operator has changed something: what has failed is tried at once, unless it is to wait, as when the
    /// authority has asked for a pause.
    pub fn hurry(&mut self, now: Moment, is_to_wait: bool) {
        if !is_to_wait {
            self.paused_until = self.paused_until.min(now.uptime);
        }
        self.look_at = self.look_at.min(now.uptime);
        self.save_at = self.save_at.map(|save_at| save_at.min(now.uptime));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_S: i64 = 86_400;
    const RULE: RetryRule = RetryRule { first: Duration::from_secs(60), longest: Duration::from_secs(6 * 3600) };

    fn at(unix_s: i64, uptime_s: u64) -> Moment {
        Moment { unix_s, uptime: Duration::from_secs(uptime_s) }
    }

    fn days(from: i64, to: i64) -> Validity {
        Validity { not_before_s: from * DAY_S, not_after_s: to * DAY_S }
    }

    #[test]
    fn renewal_is_at_a_third() {
        let mut plan = RenewalPlan::new(Some(days(0, 90)));
        plan.on_suggested(None, None, at(0, 0), 0.5);
        assert_eq!(plan.renewal_s(), Some(60 * DAY_S));
        assert_eq!(plan.step(at(60 * DAY_S - 1, 1)), None);
        assert_eq!(plan.step(at(60 * DAY_S, 1)), Some(Step::Order));
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
        assert_eq!(plan.step(at(0, 0)), Some(Step::Order));
        plan.on_failed(at(0, 0), &RULE, 0.5, None);
        assert_eq!((plan.step(at(0, 59)), plan.step(at(0, 60))), (None, Some(Step::Order)));
        assert_eq!(plan.idle_time(at(0, 20)), Duration::from_secs(40));
        plan.on_failed(at(0, 60), &RULE, 0.5, Some(Duration::from_secs(3600)));
        assert_eq!((plan.step(at(0, 3659)), plan.step(at(0, 3660))), (None, Some(Step::Order)));
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
            if plan.step(at(now, uptime)) == Some(Step::Order) {
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
        assert_eq!(plan.step(at(DAY_S, 0)), Some(Step::Look));
        plan.on_suggested(Some((70 * DAY_S, 80 * DAY_S)), None, at(DAY_S, 0), 0.5);
        assert_eq!(plan.renewal_s(), Some(60 * DAY_S));
        plan.on_suggested(Some((10 * DAY_S, 20 * DAY_S)), None, at(DAY_S, 0), 0.5);
        assert_eq!(plan.renewal_s(), Some(15 * DAY_S));
        // A revoked certificate is replaced at once; what is suggested after that is asked for later.
        plan.on_suggested(Some((-5, -4)), None, at(DAY_S, 0), 0.5);
        assert_eq!(plan.step(at(DAY_S, 0)), Some(Step::Order));
        assert!(plan.on_issued(days(1, 91), at(DAY_S, 0), &RULE, 0.5));
        assert_eq!(plan.step(at(DAY_S, 3600)), None);
        assert_eq!(plan.step(at(DAY_S, 6 * 3600)), Some(Step::Look));
    }

    #[test]
    fn reload_tries_failures_at_once() {
        let mut plan = RenewalPlan::new(None);
        plan.on_failed(at(0, 0), &RULE, 0.5, None);
        plan.hurry(at(0, 1), true);
        assert_eq!(plan.step(at(0, 1)), None);
        plan.hurry(at(0, 1), false);
        assert_eq!((plan.step(at(0, 1)), plan.failures()), (Some(Step::Order), 1));
    }

    #[test]
    fn orders_come_before_looks() {
        let now = at(DAY_S, 0);
        let mut plans = vec![RenewalPlan::new(Some(days(0, 90))), RenewalPlan::new(None), RenewalPlan::new(None)];
        assert_eq!(next_step(plans.iter(), now), Some((1, Step::Order)));
        // What failed before waits for what did not.
        plans[1].failures = 1;
        assert_eq!(next_step(plans.iter(), now), Some((2, Step::Order)));
        plans[0].on_suggested(None, None, now, 0.5);
        plans[0].save_at = Some(now.uptime);
        assert_eq!(next_step(plans.iter(), now), Some((0, Step::Save)));
        assert_eq!(
            (next_step(plans[..0].iter(), now), next_step(plans[..1].iter(), at(DAY_S, 0))),
            (None, Some((0, Step::Save)))
        );
    }

    #[test]
    fn what_was_not_written_is_written_later() {
        let mut plan = RenewalPlan::new(Some(days(0, 90)));
        plan.on_suggested(None, None, at(0, 0), 0.5);
        plan.on_saved(false, at(0, 0));
        assert_eq!((plan.step(at(0, 299)), plan.step(at(0, 300))), (None, Some(Step::Save)));
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
            let validity = validity.map(|(not_before_s, not_after_s)| Validity { not_before_s, not_after_s });
            let mut plan = RenewalPlan::new(validity);
            let now = at(moment.0, moment.1);
            plan.failures = failures;
            let asked = asked.map(Duration::from_secs);
            plan.on_failed(now, &RULE, chance, asked);
            plan.on_suggested(window, asked, now, chance);
            plan.on_saved(false, now);
            let idle = plan.idle_time(now);
            prop_assert!(plan.step(now).is_some() || !idle.is_zero());
            plan.hurry(now, false);
            prop_assert!(plan.step(now).is_some());
        }
    }
}
