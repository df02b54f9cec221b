use nectary_sim::volume::{Bug, replay_planted, run_planted};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let first: u64 = args[1].parse().unwrap();
    let runs: u64 = args[2].parse().unwrap();
    for bug in Bug::EVERY {
        if args.len() > 3 && !args[3..].iter().any(|a| bug.name().contains(a.as_str())) {
            continue;
        }
        let caught = run_planted(*bug, first, runs);
        match caught {
            Some(c) => println!(
                "{}: {} {:.150} {}",
                bug.name(),
                c.case.seed,
                c.broken,
                replay_planted(*bug, c.case.seed).as_ref() == Some(&c)
            ),
            None => println!("{}: SURVIVED", bug.name()),
        }
    }
}
