//! Tests what programs keep in use on one mount while another one changes names and attributes around it, and how long
//! calls take meanwhile. Each change by the other mount recalls what the first one keeps.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::VolumeRig;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No call takes longer.
const CALL_MAX: Duration = Duration::from_secs(5);
/// The longest time of a test; then its mounts are killed, so that every call ends.
const TEST_MAX: Duration = Duration::from_secs(90);

fn volume() -> Option<VolumeRig> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("volume: {reason}"));
            None
        }
        None => Some(VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"))),
    }
}

/// Measures calls.
#[derive(Default)]
struct CallClock {
    calls: AtomicU64,
    slowest: Mutex<(Duration, String)>,
}

impl CallClock {
    fn call<T>(&self, what: &str, path: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> T {
        let began = Instant::now();
        let result = call(path);
        let taken = began.elapsed();
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut slowest = self.slowest.lock().expect("no panic");
        if taken > slowest.0 {
            *slowest = (taken, format!("{what} {}", path.display()));
        }
        drop(slowest);
        result.unwrap_or_else(|error| panic!("{what} {}: {error}", path.display()))
    }

    /// Prints the figures, and returns the time of the slowest call.
    fn judge(&self, who: &str) {
        let (calls, slowest) = (self.calls.load(Ordering::Relaxed), self.slowest.lock().expect("no panic").clone());
        println!("{who}: {calls} calls, the slowest: {slowest:?}");
        assert!(calls > 0 && slowest.0 < CALL_MAX, "{who}: {slowest:?}");
    }
}

/// Kills processes when a test takes too long.
struct LateKill {
    is_over: std::sync::mpsc::Sender<()>,
}

impl LateKill {
    fn of(volume: &VolumeRig, mounts: usize) -> LateKill {
        let processes: Vec<u32> = (0..mounts).map(|index| volume.mount_process(index)).collect();
        let (is_over, over) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if over.recv_timeout(TEST_MAX) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                for process in processes {
                    // SAFETY: a plain system call. The mounts live as long as the test, which is not over.
                    unsafe { libc::kill(process as i32, libc::SIGKILL) };
                }
            }
        });
        LateKill { is_over }
    }
}

impl Drop for LateKill {
    fn drop(&mut self) {
        let _ = self.is_over.send(());
    }
}

fn mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Uses a directory: by a bind mount, as a working directory, and by an open listing and an open file. It looks at them in
/// turn, and follows the working directory when it is told where that is now. `problem` lines say what is wrong.
const USER: &str = r#"
import os, select, sys, time
top = sys.argv[1]
slowest, calls, listings = 0.0, 0, 0
def call(function, *arguments):
    global slowest, calls
    began = time.monotonic()
    try:
        return function(*arguments)
    finally:
        slowest, calls = max(slowest, time.monotonic() - began), calls + 1
def check(is_so, words):
    if not is_so:
        print('problem', words, flush=True)
os.chdir(top + '/work/inside')
places = [top + '/work/inside', top + '/gone/inside']
check(os.getcwd() == places[0], 'getcwd at first')
inode = os.stat('.').st_ino
stable = {name for name in os.listdir(top + '/listed') if name.startswith('stable')}
kept = os.open(top + '/work/kept', os.O_RDONLY)
listing, seen = None, []
print('ready', flush=True)
while True:
    if select.select([sys.stdin], [], [], 0)[0]:
        line = sys.stdin.readline().strip()
        if not line:
            break
        call(os.stat, line)
        check(call(os.getcwd) == line, 'getcwd after a move')
        print('followed', flush=True)
    try:
        check(' %s/target ' % top in open('/proc/self/mountinfo').read(), 'the bind mount is gone')
        check(call(lambda: open(top + '/target/file').read()) == 'bound', 'the file of the bind mount')
        check(call(os.stat, '.').st_ino == inode, 'the working directory is another one')
        check(call(lambda: open('file').read()) == 'inside', 'the file of the working directory')
        check(call(os.pread, kept, 100, 0) == b'kept' and call(os.fstat, kept).st_size == 4, 'the open file')
        if listing is None:
            listing, seen = call(os.scandir, top + '/listed'), []
        for _ in range(50):
            entry = call(next, listing, None)
            if entry is None:
                found = [name for name in seen if name.startswith('stable')]
                check(len(found) == len(stable) and set(found) == stable, 'the listing has %d names' % len(found))
                listing, listings = None, listings + 1
                break
            seen.append(entry.name)
    except OSError as error:
        print('problem', error, flush=True)
    # When the directory was moved, it has no name until somebody looks up the new one.
    try:
        check(call(os.getcwd) in places, 'getcwd')
    except FileNotFoundError:
        pass
print('end', calls, listings, slowest, flush=True)
"#;

/// The program, in a mount namespace that ends with it.
struct DirectoryUser {
    child: Child,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl DirectoryUser {
    fn start(top: &Path) -> DirectoryUser {
        let script = "mount --bind \"$0/bound\" \"$0/target\" && exec python3 -c \"$1\" \"$0\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(top).arg(USER);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut user = DirectoryUser { child, lines };
        user.wait_for("ready");
        user
    }

    /// Reads lines up to one that begins with `word`; returns it. A problem is a panic.
    fn wait_for(&mut self, word: &str) -> String {
        let line = self.lines.next().expect("it goes on").expect("it is read");
        assert!(line.starts_with(word), "{line}");
        line
    }

    fn follow(&mut self, place: &Path) {
        let mut stdin = self.child.stdin.as_ref().expect("a pipe");
        writeln!(stdin, "{}", place.display()).expect("it is told");
        self.wait_for("followed");
    }

    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let line = self.wait_for("end");
        assert!(self.child.wait().expect("it ends").success());
        line
    }
}

/// Makes and removes names in a directory, and changes modes of it and of a file there.
fn disturb(clock: &CallClock, directory: &Path, file: &Path, round: u32) {
    let (made, moved) = (directory.join(format!("made-{round}")), directory.join(format!("moved-{round}")));
    clock.call("make", &made, |path| File::create(path).map(drop));
    clock.call("rename", &made, |path| fs::rename(path, &moved));
    clock.call("chmod", directory, |path| mode(path, 0o755 - round % 2 * 5));
    clock.call("chmod", file, |path| mode(path, 0o644 - round % 2 * 4));
    clock.call("remove", &moved, |path| fs::remove_file(path));
    clock.call("make", &made, |path| fs::create_dir(path));
    clock.call("remove", &made, |path| fs::remove_dir(path));
}

/// The time in which the other mount makes changes around a directory in use.
const USE_TIME: Duration = Duration::from_secs(3);
/// The directory whose listing is open has so many names, of a length with which a listing takes many requests.
const LISTED: usize = 800;

/// A bind mount, a working directory, an open listing and an open file stay in use while another mount makes, moves,
/// removes and changes what is around them, and moves them.
#[test]
fn uses_survive_changes_by_other_mount() {
    let Some(mut volume) = volume() else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let _late = LateKill::of(&volume, 2);
    let (top, there) = (first.join("top"), second.join("top"));
    for name in ["", "work", "work/inside", "bound", "target", "listed"] {
        fs::create_dir(there.join(name)).expect("it is made");
    }
    for (name, text) in [("work/inside/file", "inside"), ("work/kept", "kept"), ("bound/file", "bound")] {
        fs::write(there.join(name), text).expect("it is written");
    }
    let stable = |number: usize| format!("listed/stable-{number}-{}", "n".repeat(150));
    (0..LISTED).for_each(|number| drop(File::create(there.join(stable(number))).expect("it is made")));
    let mut user = DirectoryUser::start(&top);
    let (clock, until, rounds) = (CallClock::default(), Instant::now() + USE_TIME, AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in (0..).take_while(|_| Instant::now() < until) {
                disturb(&clock, &there, &there.join("target"), round);
                disturb(&clock, &there.join("listed"), &there.join(stable(0)), round);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in (0..).take_while(|_| Instant::now() < until) {
            let (from, to) = if round % 2 == 0 { ("work", "gone") } else { ("gone", "work") };
            disturb(&clock, &there.join(from).join("inside"), &there.join(from).join("inside/file"), round);
            disturb(&clock, &there.join(from), &there.join(from).join("kept"), round);
            clock.call("rename", &there.join(from), |path| fs::rename(path, there.join(to)));
            user.follow(&top.join(to).join("inside"));
            let (from, to) = if round % 2 == 0 { ("bound", "other") } else { ("other", "bound") };
            disturb(&clock, &there.join(from), &there.join(from).join("file"), round);
            clock.call("rename", &there.join(from), |path| fs::rename(path, there.join(to)));
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    });
    let line = user.end();
    let figures: Vec<f64> = line.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
    println!(
        "{} rounds; calls, listings and the slowest call of the user: {figures:?}",
        rounds.load(Ordering::Relaxed)
    );
    clock.judge("the other mount");
    assert!(figures[0] > 100.0 && figures[1] > 0.0 && rounds.load(Ordering::Relaxed) > 4, "{line}");
    assert!(figures[2] < CALL_MAX.as_secs_f64(), "{line}");
    volume.finish_whole().unwrap_or_else(|error| panic!("{error:#}"));
}

/// The files of the directory in which names and attributes are recalled.
const BUSY_FILES: usize = 64;
/// The recalls in a second, and the number of seconds that must have so many.
const RECALLS: u64 = 100;
const SECONDS: usize = 5;
/// The directories, and the files of each, of the tree that is read meanwhile.
const TREE: (usize, usize) = (12, 12);

/// Returns how often the server has recalled names and attributes so far.
fn recalls(volume: &VolumeRig) -> u64 {
    let (_, text) = volume.try_run(&["status", "--json"]).unwrap_or_else(|error| panic!("{error:#}"));
    let parts: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found = parts.iter().find_map(|part| part["status"]["detail"]["kept"]["recalls"].as_u64());
    found.unwrap_or_else(|| panic!("the server says nothing of recalls: {text}"))
}

/// Finds and reads all files of a tree; returns their number.
fn read_tree(clock: &CallClock, directory: &Path) -> usize {
    let names = clock.call("list", directory, |path| fs::read_dir(path)?.collect::<io::Result<Vec<_>>>());
    let paths = names.into_iter().map(|entry| entry.path());
    let read = |path: PathBuf| match clock.call("stat", &path, |path| fs::metadata(path)).is_dir() {
        true => read_tree(clock, &path),
        false => {
            let text = clock.call("read", &path, |path| fs::read(path));
            assert!(text == path.as_os_str().as_encoded_bytes()[path.as_os_str().len() - 4..], "{}", path.display());
            1
        }
    };
    paths.map(read).sum()
}

/// One mount looks at a directory that another one changes, so that a hundred times a second something is recalled.
/// Another tree is read meanwhile.
#[test]
fn many_recalls_delay_no_other_tree() {
    let Some(mut volume) = volume() else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let _late = LateKill::of(&volume, 2);
    fs::create_dir(second.join("busy")).expect("it is made");
    let file = |mount: &Path, number: usize| mount.join(format!("busy/file-{number}"));
    (0..BUSY_FILES).for_each(|number| drop(File::create(file(&second, number)).expect("it is made")));
    for directory in 0..TREE.0 {
        fs::create_dir_all(second.join(format!("tree/{directory:02}"))).expect("it is made");
        for number in 0..TREE.1 {
            let path = second.join(format!("tree/{directory:02}/f-{number:02}"));
            fs::write(&path, format!("f-{number:02}")).expect("it is written");
        }
    }
    let (looking, changing, reading) = (CallClock::default(), CallClock::default(), CallClock::default());
    let (is_over, trees) = (AtomicBool::new(false), AtomicU64::new(0));
    let goes_on = || !is_over.load(Ordering::Relaxed);
    let rates = std::thread::scope(|scope| {
        scope.spawn(|| {
            while goes_on() {
                looking.call("list", &first.join("busy"), |path| fs::read_dir(path).map(Iterator::count));
                (0..BUSY_FILES)
                    .for_each(|number| _ = looking.call("stat", &file(&first, number), |path| fs::metadata(path)));
            }
        });
        scope.spawn(|| {
            for round in (0..).take_while(|_| goes_on()) {
                for number in 0..BUSY_FILES {
                    changing.call("chmod", &file(&second, number), |path| mode(path, 0o600 + round % 2 * 0o44));
                    let new = second.join(format!("busy/new-{}", number % 4));
                    if number % 8 == 0 {
                        changing.call("make", &new, |path| File::create(path).map(drop));
                        changing.call("remove", &new, |path| fs::remove_file(path));
                    }
                }
            }
        });
        scope.spawn(|| {
            while goes_on() {
                assert_eq!(read_tree(&reading, &first.join("tree")), TREE.0 * TREE.1);
                trees.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (began, mut before, mut rates) = (Instant::now(), recalls(&volume), Vec::new());
        while rates.iter().filter(|rate| **rate >= RECALLS).count() < SECONDS && began.elapsed() < TEST_MAX / 2 {
            std::thread::sleep(Duration::from_secs(1));
            let now = recalls(&volume);
            rates.push(now - before);
            before = now;
        }
        is_over.store(true, Ordering::Relaxed);
        rates
    });
    println!("recalls in each second: {rates:?}; the tree was read {} times", trees.load(Ordering::Relaxed));
    for (clock, who) in [(&looking, "looking"), (&changing, "changing"), (&reading, "reading")] {
        clock.judge(who);
    }
    assert!(rates.iter().filter(|rate| **rate >= RECALLS).count() >= SECONDS, "{rates:?}");
    volume.finish_whole().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Whether a process has ended, also its threads; it need not be waited for.
fn has_ended(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    threads <= 1 && stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}

/// Whether a thread of a mount that notifies the kernel waits there.
fn waits_in_kernel(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.any(|stat| ["(nectary-notify) D", "(nectary-shown) D"].iter().any(|waits| stat.contains(waits)))
}

fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !is_so() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A mount that is killed while it tells the kernel of a name, and the kernel waits for a call of this mount, which waits
/// for another host: the call ends, and the process.
#[test]
fn mount_killed_while_notifying_ends() {
    let Some(mut volume) = volume() else { return };
    let mounts = [0; 3].map(|_| volume.mount().expect("it mounts"));
    let [first, stopped, third] = &mounts;
    let _late = LateKill::of(&volume, 3);
    let process = volume.mount_process(0);
    let mut is_staged = false;
    for round in 0..10 {
        let name = |mount: &Path, name: &str| mount.join(format!("d{round}/{name}"));
        fs::create_dir(third.join(format!("d{round}"))).expect("it is made");
        fs::write(name(third, "seen"), b"").expect("it is made");
        // This mount keeps that there is no such name, and is stopped: a host that makes one waits for it.
        assert!(fs::metadata(name(stopped, "new")).is_err() && fs::read_dir(stopped.join(format!("d{round}"))).is_ok());
        volume.signal_mount(1, libc::SIGSTOP);
        fs::metadata(name(first, "seen")).expect("it is there");
        let (new, seen) = (name(first, "new"), name(third, "seen"));
        let making = std::thread::spawn(move || File::create(new).map(drop));
        let removing = std::thread::spawn(move || fs::remove_file(seen));
        is_staged = within(Duration::from_secs(1), || waits_in_kernel(process));
        if is_staged {
            volume.signal_mount(0, libc::SIGKILL);
            let (is_made, is_ended) =
                (within(CALL_MAX, || making.is_finished()), within(CALL_MAX, || has_ended(process)));
            if !is_made || !is_ended {
                let _ = Command::new("umount").args(["-f", "-l"]).arg(first).status();
            }
            volume.signal_mount(1, libc::SIGCONT);
            assert!(is_made && is_ended, "the call has ended: {is_made}; the process: {is_ended}");
            assert!(making.join().expect("it does not panic").is_err());
            removing.join().expect("it does not panic").expect("it is removed");
            break;
        }
        volume.signal_mount(1, libc::SIGCONT);
        println!("round {round}: {:?} {:?}", making.join(), removing.join());
    }
    assert!(is_staged, "the kernel never waited");
    volume.kill_mount(0);
    volume.finish_whole().unwrap_or_else(|error| panic!("{error:#}"));
}
