//! make and cc on one mount of a volume; the program runs on another.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use super::{ProgramCounts, ProgramRound, RoundFolders, run};

/// The number of units of a C program.
const UNITS: u64 = 12;

/// A round of the compiler.
pub(super) struct CompilerRound;

impl ProgramRound for CompilerRound {
    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64> {
        compile(folders, stored).map(|()| 0)
    }

    fn look(&self, folders: &RoundFolders, before: u64) -> Result<bool> {
        for unit in 0..before {
            run(Command::new("test").arg("-s").arg(folders.there.join(format!("unit_{unit}.o"))))?;
        }
        Ok(before > 0)
    }

    fn spoil(&self, folders: &RoundFolders) -> Result<()> {
        run(Command::new("truncate").args(["-s", "100"]).arg(folders.there.join("unit_3.o"))).map(drop)
    }

    fn check(&self, folders: &RoundFolders, _done: &ProgramCounts) -> Result<()> {
        check_compiled(folders)
    }
}

/// Compiles units one after another and links them.
fn compile(folders: &RoundFolders, stored: &AtomicU64) -> Result<()> {
    const SCRIPT: &str = r#"set -e; i=0; while [ $i -lt $1 ]; do n=$((i + 1)); r="unit_$n(value + $i)";
        [ $n -lt $1 ] || r=value
        printf 'long unit_%d(long);\nlong unit_%d(long value) { return %s; }\n' $n $i "$r" > unit_$i.c; i=$n; done
        printf '#include <stdio.h>\nlong unit_0(long);\nint main(void) { printf("%%ld\\n", unit_0(0)); }\n' > main.c
        printf 'program: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\n' > Makefile"#;
    run(Command::new("sh").args(["-c", SCRIPT, "sh", &UNITS.to_string()]).current_dir(&folders.here))?;
    for unit in 0..UNITS {
        run(Command::new("make").arg("-C").arg(&folders.here).arg(format!("unit_{unit}.o")))?;
        stored.store(unit + 1, Ordering::Release);
    }
    run(Command::new("make").args(["-j2", "-C"]).arg(&folders.here).arg("program")).map(drop)
}

fn check_compiled(folders: &RoundFolders) -> Result<()> {
    // Run the program that the other mount has, and then the program after it was linked again there.
    let sum: u64 = (0..UNITS - 1).sum();
    for again in [false, true] {
        if again {
            run(Command::new("rm").arg(folders.there.join("program")))?;
        }
        run(Command::new("make").args([if again { "-k" } else { "-q" }, "-C"]).arg(&folders.there).arg("program"))?;
        let found = run(&mut Command::new(folders.there.join("program")))?;
        ensure!(found.trim() == sum.to_string(), "the program prints {found}, not {sum}");
    }
    Ok(())
}
