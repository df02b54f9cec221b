//! Tests with C programs that use the library. The machine's compiler builds them, and they run under AddressSanitizer.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// A directory that is removed at the end of the test.
struct ProgramScratch(PathBuf);

impl ProgramScratch {
    fn new(test: &str) -> ProgramScratch {
        let path = std::env::temp_dir().join(format!("nectary-capi-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory in the temporary directory");
        ProgramScratch(path)
    }
}

impl Drop for ProgramScratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The static library that was built together with this program.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("it knows where it is");
    let folder = own.parent().expect("it is in a directory");
    [folder.join("libnectary.a"), folder.with_file_name("libnectary.a")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("libnectary.a is beside the tests")
}

fn compile(arguments: &[&OsStr]) -> std::io::Result<Output> {
    let flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address"];
    Command::new("cc").args(flags).args(arguments).output()
}

/// The reason why C programs cannot be built on this machine, or cannot run under AddressSanitizer; `None` if they can.
fn missing(scratch: &Path) -> Option<String> {
    let (source, program) = (scratch.join("empty.c"), scratch.join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("it is written");
    match compile(&[source.as_os_str(), "-o".as_ref(), program.as_os_str()]) {
        Err(error) => Some(format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => Some("the C compiler has no AddressSanitizer".to_owned()),
        Ok(_) => (!Command::new(program).status().is_ok_and(|status| status.success()))
            .then(|| "no program runs under AddressSanitizer here".to_owned()),
    }
}

/// Builds a program and runs it `times` times on a store's file. If this machine cannot do that, prints the reason and
/// returns `None`.
fn run(test: &str, source: &str, times: usize) -> Option<Vec<Output>> {
    let scratch = ProgramScratch::new(test);
    if let Some(reason) = missing(&scratch.0) {
        println!("NOT RUN: {test}: {reason}");
        return None;
    }
    let (source, program) = (Path::new(PACKAGE).join(source), scratch.0.join("program"));
    let (include, library) = (Path::new(PACKAGE).join("include"), library());
    let mut arguments = vec![source.as_os_str(), "-I".as_ref(), include.as_os_str(), library.as_os_str()];
    arguments.extend(["-o".as_ref(), program.as_os_str()]);
    arguments.extend(["-lpthread", "-ldl", "-lm", "-lrt", "-lutil", "-lgcc_s"].map(OsStr::new));
    let built = compile(&arguments).expect("it compiled before");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let store = scratch.0.join("store");
    Some((0..times).map(|_| Command::new(&program).arg(&store).output().expect("it runs")).collect())
}

#[test]
fn example_program_rereads_its_files() {
    let Some(outputs) = run("the C example", "examples/pages.c", 2) else { return };
    for output in &outputs {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let texts: Vec<_> = outputs.iter().map(|output| String::from_utf8_lossy(&output.stdout)).collect();
    let (page, picture) = ("http://example.org/flower.html", "http://example.org/flower.png");
    let found = format!("{page}: <img src=flower.png>\n{picture}: the picture\n");
    assert_eq!(texts, [format!("{page}: fetched\n{picture}: fetched\n{found}"), found.repeat(2)]);
}

/// A C program that reads bytes after it gave them back is caught by the address sanitizer.
#[test]
fn returned_bytes_are_not_readable() {
    let Some(outputs) = run("planted misuse in C", "tests/misuse.c", 1) else { return };
    let text = String::from_utf8_lossy(&outputs[0].stderr);
    assert!(!outputs[0].status.success() && text.contains("heap-use-after-free"), "{text}");
}
