//! `adaptive` reports the misses of the policies that it followed, which separates the price of following from that of
//! choosing.

use nectary_cache::{Access, Adaptive, Policy, Stream, by_name};

fn misses(policy: &mut dyn Policy, ids: impl Iterator<Item = u64>) -> u64 {
    ids.map(|id| u64::from(policy.reference(id, 1, Stream(0), &mut |_| true) != Access::Hit)).sum()
}

#[test]
fn where_one_policy_leads_throughout_following_costs_nothing() {
    let mut adaptive = Adaptive::new(100);
    let own = misses(&mut adaptive, (0..9000).map(|step| step % 150));
    let alone = misses(&mut *by_name("lirs", 100).expect("registered"), (0..9000).map(|step| step % 150));
    assert_eq!((adaptive.leader(), adaptive.misses_of_leaders(), own), ("lirs", alone, alone));
}
