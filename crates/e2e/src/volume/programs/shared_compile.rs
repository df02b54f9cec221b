//! One program that two mounts of a volume compile at once, half of the objects each; a third mount links it.
//!
//! Promises: each object is the one that a compiler on a local disk makes, the program runs on every mount, and then
//! `make` has nothing to do on any mount, so all of them see the same times.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{ProgramCounts, ProgramRound, RoundFolders, run, tool};
use crate::guard::{GuardedProcess, describe};

/// The longest time of a half.
const LIMIT: Duration = Duration::from_secs(240);

/// A round of a shared compile.
pub(super) struct SharedCompileRound;

impl ProgramRound for SharedCompileRound {
    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64> {
        let source = folders.beside.join("source");
        write_source(&source, units(folders), folders.seed.is_multiple_of(2))?;
        run(tool("cp").arg("-r").arg(&source).arg(tree(&folders.here)))?;
        let mut halves = Vec::new();
        for (mount, goal) in [(&folders.here, "objects-even"), (&folders.there, "objects-odd")] {
            let mut command = make(&tree(mount), goal);
            // The list of objects that the compiler says are stored is not on the volume.
            command.arg("-j2").arg(format!("DONE={}", list(folders).display()));
            halves.push(GuardedProcess::spawn(goal, command, &folders.beside.join(goal), None)?);
        }
        let count = || {
            stored.store(finished(folders)?.len() as u64, Ordering::Release);
            Ok::<_, anyhow::Error>(())
        };
        for half in &mut halves {
            let deadline = std::time::Instant::now() + LIMIT;
            while half.try_status().is_none() && std::time::Instant::now() < deadline {
                count()?;
                std::thread::sleep(Duration::from_millis(10));
            }
            let status = half.wait(Duration::ZERO)?;
            ensure!(status.success(), "{}\n{}", describe(status), half.log_tail());
        }
        count()?;
        let made = stored.load(Ordering::Acquire);
        ensure!(made == units(folders) + 1, "{made} objects are made, not {} once each", units(folders) + 1);
        let linked = run(&mut make(&tree(&folders.third), "program"))?;
        ensure!(!linked.contains(" -c "), "the mount that links compiles again: {linked}");
        check_result(folders)?;
        Ok(0)
    }

    fn look(&self, folders: &RoundFolders, before: u64) -> Result<bool> {
        for object in finished(folders)?.iter().take(before as usize) {
            run(tool("test").arg("-s").arg(tree(&folders.third).join(object)))?;
        }
        Ok(before > 0)
    }

    fn spoil(&self, folders: &RoundFolders) -> Result<()> {
        // Another value of the same size and time: only a comparison of the bytes can miss the right one.
        let object = tree(&folders.there).join(&finished(folders)?[1]);
        let script = "touch -r \"$0\" kept && printf X | dd of=\"$0\" bs=1 seek=200 conv=notrunc status=none && \
                      touch -r kept \"$0\"";
        run(tool("sh").args(["-c", script]).arg(object).current_dir(&folders.beside)).map(drop)
    }

    fn check(&self, folders: &RoundFolders, _done: &ProgramCounts) -> Result<()> {
        check_result(folders)?;
        let source = folders.beside.join("source");
        run(make(&source, "program").arg("-j2").arg("DONE=/dev/null"))?;
        for object in finished(folders)? {
            for mount in folders.every() {
                run(tool("cmp").arg(source.join(&object)).arg(tree(mount).join(&object)))?;
            }
        }
        Ok(())
    }
}

/// The number of units beside the main one.
fn units(folders: &RoundFolders) -> u64 {
    folders.kit.scale.of(10, 40)
}

/// The tree of the program on a mount.
fn tree(mount: &Path) -> PathBuf {
    mount.join("shared")
}

fn make(tree: &Path, goal: &str) -> Command {
    let mut command = tool("make");
    command.arg("-C").arg(tree).arg(goal);
    // A `make` that runs this process says with these how many jobs there are.
    command.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL");
    command
}

fn list(folders: &RoundFolders) -> PathBuf {
    folders.beside.join("objects")
}

/// The objects that the compiler says are made.
fn finished(folders: &RoundFolders) -> Result<Vec<String>> {
    let list = list(folders);
    if !list.exists() {
        return Ok(Vec::new());
    }
    // Each line is written as a whole; the last one may be in progress.
    let text = fs::read_to_string(list)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    Ok(whole.lines().map(str::to_owned).collect())
}

/// Writes the source of a program whose units call each other, and a Makefile. The objects of both halves are in one
/// folder, or (with `is_apart`) each half has one.
fn write_source(folder: &Path, units: u64, is_apart: bool) -> Result<()> {
    fs::create_dir_all(folder.join("even"))?;
    fs::create_dir_all(folder.join("odd"))?;
    let (even, odd) = if is_apart { ("even", "odd") } else { ("even", "even") };
    let mut header = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    for unit in 0..units {
        header += &format!("long unit_{unit}(long value);\n");
    }
    fs::write(folder.join("units.h"), header)?;
    for unit in 0..units {
        let next = unit + 1;
        let call = if next < units { format!("unit_{next}(value + {unit})") } else { format!("value + {unit}") };
        let table: Vec<String> = (0..200).map(|index| (unit * 1000 + index).to_string()).collect();
        let text = format!(
            "#include \"units.h\"\nstatic const long table[] = {{{}}};\nlong unit_{unit}(long value) {{\n    \
             if (value < 0) return table[-value % 200];\n    return {call};\n}}\n",
            table.join(", ")
        );
        fs::write(folder.join(format!("unit_{unit}.c")), text)?;
    }
    fs::write(
        folder.join("main.c"),
        "#include \"units.h\"\nint main(void) { printf(\"%ld\\n\", unit_0(0)); return 0; }\n",
    )?;
    let half = |folder: &str, parity: u64| -> String {
        let units = (0..units).filter(|unit| unit % 2 == parity).map(|unit| format!(" {folder}/unit_{unit}.o"));
        units.collect()
    };
    let makefile = format!(
        "EVEN ={}{}\nODD ={}\nprogram: $(EVEN) $(ODD)\n\tcc -o $@ $^\nobjects-even: $(EVEN)\nobjects-odd: $(ODD)\n\
         even/%.o: %.c units.h\n\tcc -O1 -c -o $@ $<\n\techo $@ >> $(DONE)\n\
         odd/%.o: %.c units.h\n\tcc -O1 -c -o $@ $<\n\techo $@ >> $(DONE)\n.PHONY: objects-even objects-odd\n",
        half(even, 0),
        " even/main.o",
        half(odd, 1)
    );
    Ok(fs::write(folder.join("Makefile"), makefile)?)
}

/// On every mount the program prints the right result, and make has nothing to do.
fn check_result(folders: &RoundFolders) -> Result<()> {
    let sum: u64 = (0..units(folders)).sum();
    for mount in folders.every() {
        let found = run(&mut Command::new(tree(mount).join("program")))?;
        ensure!(found.trim() == sum.to_string(), "{}: the program prints {found}, not {sum}", mount.display());
        for goal in ["program", "objects-even", "objects-odd"] {
            run(make(&tree(mount), goal).arg("-q"))?;
        }
    }
    Ok(())
}
