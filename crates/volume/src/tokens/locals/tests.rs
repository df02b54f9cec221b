//! Which session gets which directory, and who waits for its return.

use super::*;

const DIRECTORY: FileId = FileId { inode: 7, generation: 1 };

/// A directory that session 1 holds.
fn held() -> (LocalDirectories, TokenGrant) {
    let mut locals = LocalDirectories::new(1);
    assert!(!locals.changed(0, 1, 7), "it has no numbers");
    [1, 2].into_iter().for_each(|session| locals.add_numbers(session, 100 * session..100 * session + 9));
    assert!(!locals.changed(0, 1, 7) && locals.changed(1, 1, 7));
    locals.grant(1, 1, DIRECTORY);
    let [(1, held)] = locals.take_messages()[..] else { panic!("it is told") };
    assert_eq!((held.level, held.token.object), (WRITE, DIRECTORY));
    (locals, held)
}

#[test]
fn other_session_waits_for_the_return() {
    let (mut locals, granted) = held();
    locals.note_made(2, 7, 20);
    assert!(locals.wait_for(2, 1, &[7, 20], 100, false), "its holder does not wait");
    assert!(locals.wait_for(2, 2, &[8], 101, false));
    assert!(!locals.wait_for(2, 2, &[20, 7], 102, false), "it waits once for both");
    let recalls = locals.take_messages();
    assert_eq!(recalls, [(1, TokenGrant { level: level::READ, ..granted })]);
    locals.repeat(1);
    assert_eq!(locals.take_messages(), recalls);
    assert_eq!(locals.awaited().collect::<Vec<_>>(), [(1, 7, 2)]);
    assert!(locals.may_do(1, 7), "it may have done something before it got the recall");
    assert!(!locals.returned(2, recalls[0].1), "another session returns nothing");
    assert!(locals.returned(1, recalls[0].1) && !locals.returned(1, recalls[0].1));
    assert_eq!(locals.take_ready(), [102]);
    assert!(locals.wait_for(3, 2, &[7, 20], 103, false) && !locals.goes_along(7, 20));
}

#[test]
fn directory_that_passes_often_is_nobodys() {
    let (mut locals, _) = held();
    let mut now = 10;
    let mut rounds = 0;
    while rounds < 100 && locals.counts.fallbacks == 0 {
        rounds += 1;
        assert!(!locals.wait_for(now, 2, &[7], 1000 + rounds, false));
        let (session, recalled) = *locals.take_messages().last().expect("it is recalled");
        assert!(locals.returned(session, recalled));
        now += ALONE_MS.max(PAUSE_MS);
        if locals.changed(now, 1, 7) || locals.changed(now, 1, 7) {
            locals.grant(now, 1, DIRECTORY);
        }
    }
    assert_eq!((rounds, locals.counts.recalls), (u64::from(RECALLS_MAX), u64::from(RECALLS_MAX)));
    assert!(!locals.changed(now, 1, 7) && !locals.changed(now + BUSY_MS / 2, 1, 7));
    assert!(locals.changed(now + BUSY_MS, 1, 7), "and later it is given again");
}

#[test]
fn directory_of_two_sessions_is_nobodys() {
    let mut locals = LocalDirectories::new(1);
    [1, 2].into_iter().for_each(|session| locals.add_numbers(session, 100 * session..100 * session + 9));
    for now in 0..100 {
        assert!(!locals.changed(10 * now, 1 + now % 2, 7));
    }
    assert!(!locals.changed(1000, 1, 7) && !locals.changed(1001, 1, 7));
    assert!(locals.changed(1001 + ALONE_MS, 1, 7), "the other one has stopped");
    assert!(locals.wait_for(2000, 2, &[7], 5, false), "it has only looked");
    assert!(!locals.changed(2001, 1, 7) && !locals.changed(2002, 1, 7));
}

#[test]
fn numbers_used_once_in_order() {
    let mut locals = LocalDirectories::new(1);
    locals.add_numbers(1, 100..103);
    locals.add_numbers(1, 200..202);
    assert!(!locals.use_number(2, 100), "it is another session's");
    assert!(locals.use_number(1, 100) && !locals.use_number(1, 100));
    assert!(locals.use_number(1, 102) && !locals.use_number(1, 101), "numbers are used in order");
    assert!(locals.use_number(1, 200) && locals.use_number(1, 201) && !locals.use_number(1, 202));
    locals.add_numbers(1, 300..300 + NUMBERS_MAX);
    assert!(!locals.may_have_numbers(1) && locals.may_have_numbers(2));
    locals.forget(1);
    assert!(!locals.use_number(1, 300));
}

#[test]
fn lost_session_holds_nobody_up() {
    let (mut locals, _) = held();
    assert!(!locals.wait_for(2, 2, &[7], 100, false));
    locals.forget(1);
    assert_eq!((locals.take_ready(), locals.count()), (vec![100], 0));
    assert!(locals.awaited().next().is_none());
}

#[test]
fn limit_recalls_oldest_directory() {
    let mut locals = LocalDirectories::new(1);
    for inode in 0..=DIRECTORIES_MAX as u64 {
        locals.grant(0, 1, FileId { inode: 100 + inode, generation: 1 });
    }
    let told = locals.take_messages();
    let recalled: Vec<u64> =
        told.iter().filter(|(_, held)| held.level == level::READ).map(|(_, held)| held.token.object.inode).collect();
    assert_eq!((recalled, locals.counts.recalls), (vec![100], 0));
    assert!(locals.awaited().next().is_none(), "nobody waits for it");
}

#[test]
fn unknown_inode_waits_for_its_maker() {
    let (mut locals, _) = held();
    // A second directory, in which it made something last.
    locals.grant(2, 1, FileId { inode: 8, generation: 1 });
    locals.note_made(3, 8, 100);
    assert!(locals.use_number(1, 100));
    locals.take_messages();
    for (inode, what) in [(99, "nobody has it"), (100, "it was used"), (203, "it is the session's")] {
        assert!(locals.wait_for_makers(4, 2, &[inode], 50), "{inode}: {what}");
    }
    assert!(!locals.wait_for_makers(4, 2, &[103], 51));
    let told = locals.take_messages();
    let [(1, first)] = told[..] else { panic!("one recall is enough: {told:?}") };
    assert_eq!((first.token.object.inode, first.level), (8, level::READ));
    // What comes after that recall may say more than its return.
    assert!(!locals.wait_for_makers(5, 2, &[104], 52));
    let told = locals.take_messages();
    let [(1, second)] = told[..] else { panic!("another one is recalled: {told:?}") };
    assert_eq!(second.token.object.inode, 7);
    // Now it makes nothing itself behind the last of both.
    assert!(!locals.wait_for_makers(6, 2, &[105], 53) && locals.take_messages().is_empty());
    assert!(locals.returned(1, second));
    assert_eq!(locals.take_ready(), [52]);
    assert!(locals.returned(1, first));
    let mut ready = locals.take_ready();
    ready.sort_unstable();
    assert_eq!(ready, [51, 53]);
    assert!(locals.wait_for_makers(7, 2, &[105], 54), "it holds nothing, so it has sent everything");
}

/// A new directory in one that several sessions use is held by none of them.
#[test]
fn directory_in_shared_one_unheld() {
    let (mut locals, granted) = held();
    assert!(locals.may_have_new(2, 1, 7) && !locals.may_have_new(2, 2, 7), "its holder alone uses it");
    assert!(!locals.wait_for(3, 2, &[7], 100, false));
    assert!(!locals.may_have_new(3, 1, 7), "another one has listed it");
    assert!(locals.returned(1, TokenGrant { level: level::READ, ..granted }));
    locals.changed(4, 1, 7);
    assert!(!locals.may_have_new(4, 1, 7));
    locals.changed(3 + ALONE_MS, 1, 7);
    assert!(locals.may_have_new(3 + ALONE_MS, 1, 7), "the other one has stopped");
    locals.add_numbers(3, 900..901);
    locals.changed(5000, 3, 8);
    assert!(locals.may_have_new(5000, 3, 8), "nobody ever used it");
}

/// A session makes directories all the time in one that another lists. Returns how often a listing waits, a hundred times
/// at most; `is_told`: the table knows which requests have waited before.
fn waits_of_a_listing(is_told: bool) -> u64 {
    let (mut locals, _) = held();
    // The listing shows all that was made.
    let (mut listed, mut rounds) = (vec![7], 0);
    while rounds < 100 && !locals.wait_for(rounds, 2, &listed, rounds, is_told && rounds > 0) {
        let told = locals.take_messages();
        // It makes some more, and changes two names in each, before its returns arrive.
        for inode in 1000 + 3 * rounds..1003 + 3 * rounds {
            listed.push(inode);
            if !locals.changed(rounds, 1, inode) && locals.changed(rounds, 1, inode) {
                locals.grant(rounds, 1, FileId { inode, generation: 1 });
            }
        }
        for (session, held) in told.into_iter().filter(|(_, held)| held.level == level::READ) {
            assert!(locals.returned(session, held));
        }
        assert_eq!(locals.take_ready(), [rounds]);
        rounds += 1;
    }
    rounds
}

#[test]
fn listing_waits_twice_at_most() {
    assert_eq!(waits_of_a_listing(true), 2);
    assert_eq!(waits_of_a_listing(false), 100, "without the rule it waits for ever");
}

#[test]
fn directories_stop_at_bound_while_recalled() {
    let mut locals = LocalDirectories::new(1);
    let most = DIRECTORIES_MAX + RECALLED_MAX;
    for inode in 0..2 * most as u64 {
        locals.grant(0, 1, FileId { inode: 100 + inode, generation: 1 });
    }
    assert_eq!(locals.count(), most, "none is returned");
    let told = locals.take_messages();
    let recalled: Vec<TokenGrant> =
        told.iter().map(|(_, held)| *held).filter(|held| held.level == level::READ).collect();
    assert_eq!(recalled.len(), RECALLED_MAX, "each one beyond the bound recalls another one");
    recalled.into_iter().for_each(|held| assert!(locals.returned(1, held)));
    locals.grant(1, 1, DIRECTORY);
    assert_eq!(locals.count(), DIRECTORIES_MAX + 1);
    locals.recall_all(2, 1);
    let told = locals.take_messages();
    assert_eq!(told.iter().filter(|(_, held)| held.level == level::READ).count(), DIRECTORIES_MAX + 1);
}

#[test]
fn numbers_in_hand_are_counted() {
    let mut locals = LocalDirectories::new(1);
    locals.add_numbers(1, 100..110);
    locals.add_numbers(1, 200..210);
    locals.add_numbers(2, 300..305);
    assert_eq!(locals.in_hand(), 25);
    assert!(locals.use_number(1, 103) && !locals.use_number(1, 103));
    assert_eq!(locals.in_hand(), 21, "lower ones are not used any more");
    assert!(locals.use_number(1, 209));
    assert_eq!(locals.in_hand(), 5);
    locals.forget(2);
    assert_eq!(locals.in_hand(), 0);
}
