//! `fuzz`: runs the targets, by hand and in the soak.
//!
//! | arguments | what it does |
//! |---|---|
//! | `list` | lists the targets |
//! | `replay TARGET FILE…` | runs inputs |
//! | `mutants TARGET SEED COUNT` | runs mutants of the committed inputs |
//! | `soak --target TARGET --seed N --seconds N [--folder DIR]` | a long run; exits with 1 if it finds something |
//! | `planted` | shows that planted bugs are found; exits with 1 if one survives |
//! | `seeds` | adds valid inputs to the corpus, made by the writer of each format |
//! | `minimise TARGET [FOLDER] [BYTES]` | chooses a small corpus; needs a build with coverage |
//!
//! Findings are written to `target/fuzz/findings/`, and inputs that reach new code to `target/fuzz/corpus/TARGET/`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nectary_fuzz::arguments::FuzzArguments;
use nectary_fuzz::campaign::{self, FailingInput};
use nectary_fuzz::guard::TargetGuard;
use nectary_fuzz::targets::{FuzzTarget, TARGETS, by_name};
use nectary_fuzz::{corpus, coverage};

type Failure = Box<dyn std::error::Error>;

/// The time that a child may run beyond its requested time before it counts as hanging.
const GRACE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// The default size of a target's committed corpus. *Units*: bytes.
const CORPUS_BYTES: usize = 6 << 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["list"] => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(true)
        }
        ["replay", name, ref files @ ..] => replay(name, files),
        ["mutants", name, seed, count] => mutants(name, seed, count),
        ["soak", ..] => soak(),
        ["child", name, seed, seconds, folder, running] => child(name, seed, seconds, folder, running),
        ["planted"] => campaign::planted(&TargetGuard::new()).map_err(Into::into),
        ["seeds"] => seeds(),
        ["minimise", name, ref rest @ ..] => minimise(name, rest),
        _ => Err("list | replay TARGET FILE… | mutants TARGET SEED COUNT | soak … | planted | seeds | minimise TARGET"
            .into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

fn target(name: &str) -> Result<&'static FuzzTarget, Failure> {
    by_name(name).ok_or_else(|| format!("there is no target {name}; `fuzz list` names them").into())
}

fn replay(name: &str, files: &[&str]) -> Result<bool, Failure> {
    let (target, guard) = (target(name)?, TargetGuard::new());
    let mut good = true;
    for file in files {
        match guard.run(target, &std::fs::read(file)?) {
            Ok(()) => println!("{file}: passed"),
            Err(finding) => {
                println!("{file}: {}", finding.what);
                good = false;
            }
        }
    }
    Ok(good)
}

fn mutants(name: &str, seed: &str, count: &str) -> Result<bool, Failure> {
    let (target, started) = (target(name)?, Instant::now());
    let found = campaign::mutants(target, &TargetGuard::new(), seed.parse()?, count.parse()?)?;
    println!("{name}: {count} mutants, {:.2} s", started.elapsed().as_secs_f64());
    if let Some(guilty) = &found {
        report(target, guilty)?;
    }
    Ok(found.is_none())
}

/// The folder of the soak's files, in the target directory (`CARGO_TARGET_DIR`, if set).
fn base() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| [env!("CARGO_MANIFEST_DIR"), "..", "..", "target"].iter().collect(), PathBuf::from);
    target.join("fuzz")
}

/// Writes the input of a finding to a file, and prints the command that replays it.
fn report(target: &FuzzTarget, guilty: &FailingInput) -> Result<(), Failure> {
    println!("{}: FOUND after {} runs: {}", target.name, guilty.runs, guilty.finding.what);
    keep(target, &guilty.input)
}

fn keep(target: &FuzzTarget, input: &[u8]) -> Result<(), Failure> {
    let path = corpus::write(&base().join("findings").join(target.name), input)?;
    println!("  replay: cargo run --release -p nectary-fuzz -- replay {} {}", target.name, path.display());
    Ok(())
}

/// Runs a target in a child process, so that it also finds inputs that end the process or hang.
fn soak() -> Result<bool, Failure> {
    let arguments = match FuzzArguments::parse_from("fuzz soak", &["target", "seed", "seconds", "folder"], 2) {
        Ok(arguments) => arguments,
        Err(_) => return Err("soak --target TARGET --seed N --seconds N [--folder DIR]".into()),
    };
    let target = target(arguments.word("target").unwrap_or_default())?;
    let (seed, seconds) = (arguments.number("seed", 1), arguments.number("seconds", 600));
    let folder = arguments.word("folder").map_or_else(|| base().join("corpus").join(target.name), PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    let running = base().join(format!("running-{}-{}", target.name, std::process::id()));
    let mut child = Command::new(std::env::current_exe()?)
        .args(["child", target.name, &seed.to_string(), &seconds.to_string()])
        .args([&folder, &running])
        // The process reads its counters itself and needs no profile file.
        .env("LLVM_PROFILE_FILE", "/dev/null")
        .stdin(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + Duration::from_secs(seconds) + GRACE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(POLL);
    };
    if status.is_some_and(|status| status.code() == Some(0)) {
        return Ok(true);
    }
    // The child reports its own findings. If it died or was killed, the input that it was running is the finding.
    if let Ok(input) = std::fs::read(&running) {
        let how = status.map_or_else(|| "it does not end".to_owned(), |status| format!("the process ended: {status}"));
        println!("{}: FOUND: {how}", target.name);
        keep(target, &input)?;
        std::fs::remove_file(&running)?;
    }
    Ok(false)
}

fn child(name: &str, seed: &str, seconds: &str, folder: &str, running: &str) -> Result<bool, Failure> {
    let target = target(name)?;
    let guard = TargetGuard::with_file(Path::new(running))?;
    let time = Duration::from_secs(seconds.parse()?);
    let (progress, found) = campaign::soak(target, &guard, seed.parse()?, time, Path::new(folder))?;
    println!(
        "{name}: seed {seed}, {} runs, {} features{}, {} inputs kept",
        progress.runs,
        progress.features,
        if coverage::IS_COUNTED { "" } else { " (not counted in this build)" },
        progress.kept
    );
    if let Some(guilty) = &found {
        report(target, guilty)?;
    }
    Ok(found.is_none())
}

fn seeds() -> Result<bool, Failure> {
    for target in TARGETS {
        for seed in (target.seeds)() {
            corpus::write(&corpus::folder(target), &seed)?;
        }
    }
    Ok(true)
}

fn minimise(name: &str, rest: &[&str]) -> Result<bool, Failure> {
    if !coverage::IS_COUNTED {
        return Err("this build does not count; set RUSTC_WORKSPACE_WRAPPER to crates/fuzz/coverage-rustc".into());
    }
    let target = target(name)?;
    let folder = rest.first().map_or_else(|| base().join("corpus").join(name), PathBuf::from);
    let bytes_max = rest.get(1).map_or(Ok(CORPUS_BYTES), |bytes| bytes.parse())?;
    let (files, bytes) = campaign::minimise(target, &TargetGuard::new(), &folder, bytes_max)?;
    println!("{name}: {files} inputs, {bytes} bytes");
    Ok(true)
}
