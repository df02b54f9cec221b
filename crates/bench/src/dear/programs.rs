//! The seven programs of the paper's conditions, and two for a large cache; their inputs were fixed before the first run
//! (`docs/decisions/0040-dear-programs.md`).
//!
//! Owns: the requirements, the inputs and the script of each program. Leaves to others: how inputs are generated
//! (`inputs`) and how programs run (`execute`).

use std::path::Path;

use super::inputs::InputGenerator;
use super::{BLOCKS, LARGE_BLOCKS};
use crate::Error;
use crate::random::SeededRandom;

/// A program of the experiment.
#[derive(Debug)]
pub struct DearProgram {
    /// The name of the program and of its folder.
    pub name: &'static str,
    /// Its Debian package.
    pub package: &'static str,
    /// The smallest cache for which its inputs are large enough. *Units*: blocks.
    pub blocks: u64,
    /// The executables that it needs.
    pub needs: &'static [&'static str],
    /// Whether it refuses to run as root.
    pub is_nobody: bool,
    /// The function that makes its inputs.
    pub make: fn(&InputGenerator) -> Result<(), Error>,
    /// The shell script, run in its folder; its output is compared between policies.
    pub script: &'static str,
    /// The files that it writes, which are compared too.
    pub leaves: &'static [&'static str],
    /// The response times under DEAR and under LRU that the paper measured with 6 MB. *Units*: seconds.
    pub seed_s: Option<(f64, f64)>,
}

/// The directories in which executables are searched.
const PATHS: [&str; 6] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/lib/postgresql/15/bin"];

/// The command of the database, which reads statements from its standard input.
macro_rules! postgres {
    () => {
        "postgres --single -j -D data -c shared_buffers=128kB -c work_mem=64kB -c fsync=off \
         -c max_parallel_workers_per_gather=0 postgres"
    };
}

/// What most programs of the paper have in common.
const PAPER: DearProgram = DearProgram {
    name: "",
    package: "",
    blocks: BLOCKS,
    needs: &[],
    is_nobody: false,
    make: |_| Ok(()),
    script: "",
    leaves: &[],
    seed_s: None,
};
/// What programs for a large cache have in common.
const LARGE: DearProgram = DearProgram { blocks: LARGE_BLOCKS, ..PAPER };

/// All programs, in the order of the paper.
pub const PROGRAMS: [DearProgram; 7] = [
    DearProgram {
        name: "cscope",
        package: "cscope",
        needs: &["cscope"],
        make: |maker| {
            maker.c_sources(&mut SeededRandom::new(11), 1280, 24, 120, 0)?;
            let files: String = (0..1280).map(|file| format!("source/s{file}.c\n")).collect();
            maker.write("cscope.files", &files)?;
            let queries =
                "01230123".chars().zip(0..).map(|(kind, number)| format!("{kind}f{}_{number}\n", number * 70));
            maker.write("queries", &(queries.collect::<String>() + "q\n"))?;
            maker.run("cscope -b -c")
        },
        script: "cscope -d -c -l < queries",
        seed_s: Some((12.87, 19.77)),
        ..PAPER
    },
    DearProgram {
        name: "glimpse",
        package: "glimpse",
        needs: &["glimpse", "glimpseindex"],
        make: |maker| {
            maker.text_files(&mut SeededRandom::new(12), 400, 4900, 6)?;
            maker.run("glimpseindex -o -H . text")
        },
        script: "for letter in a b c d e f; do glimpse -y -H . topic${letter}aaaa; done",
        seed_s: Some((33.73, 39.55)),
        ..PAPER
    },
    DearProgram {
        name: "sort",
        package: "coreutils",
        needs: &["sort"],
        make: |maker| maker.numbered_lines(&mut SeededRandom::new(13), "in", 4_500_000),
        script: "sort -n -S 1M --parallel=1 --batch-size=8 -T . -o out in",
        leaves: &["out"],
        seed_s: Some((13.60, 16.59)),
        ..PAPER
    },
    DearProgram {
        name: "ld",
        package: "binutils",
        needs: &["ld", "as"],
        make: |maker| {
            maker.assembly(&mut SeededRandom::new(14), 120, 40, 72_000)?;
            maker.run("for file in s*.s; do as -o ${file%.s}.o $file; rm $file; done")
        },
        script: "ld -r -o all s*.o",
        leaves: &["all"],
        ..PAPER
    },
    DearProgram {
        name: "cpp",
        package: "cpp",
        needs: &["cpp"],
        make: |maker| maker.c_sources(&mut SeededRandom::new(15), 90, 20, 130, 1100),
        script: "for file in source/s*.c; do cpp -Iinclude $file; done",
        seed_s: Some((91.61, 93.39)),
        ..PAPER
    },
    DearProgram {
        name: "gnuplot",
        package: "gnuplot-nox",
        needs: &["gnuplot"],
        make: |maker| {
            maker.numbers(&mut SeededRandom::new(16), "data", 8_000_000)?;
            let plots: String = ["1:2", "1:3", "1:4", "1:5", "2:3"]
                .iter()
                .map(|columns| format!("plot 'data' using {columns} with dots notitle\n"))
                .collect();
            maker.write("plots", &format!("set terminal dumb\n{plots}"))
        },
        script: "gnuplot plots",
        ..PAPER
    },
    DearProgram {
        name: "postgres",
        package: "postgresql-15",
        needs: &["postgres", "initdb"],
        is_nobody: true,
        make: |maker| {
            maker.sql(&mut SeededRandom::new(17), "fill.sql", 12_000, 40_000)?;
            maker.write(
                "joins.sql",
                "set enable_hashjoin = off; set enable_mergejoin = off; select sum(length(maker.note)) from part \
                 join maker on maker.id = part.maker where part.price < 60;\n\n\
                 set enable_hashjoin = on; select sum(length(maker.note)) from part join maker on maker.id = part.maker;\n\n\
                 select maker, sum(price) from part group by 1 order by 2 desc, 1 limit 3;\n\n",
            )?;
            let fill = format!(
                "initdb -D data -U owner --locale=C -E SQL_ASCII -A trust --no-sync --wal-segsize=1 >/dev/null; \
                 {} < fill.sql >/dev/null",
                postgres!()
            );
            maker.run(&fill)
        },
        script: concat!(postgres!(), " < joins.sql"),
        ..PAPER
    },
];

/// Programs whose inputs are about twice as large as a cache of [`LARGE_BLOCKS`] blocks.
pub const LARGE_PROGRAMS: [DearProgram; 2] = [
    DearProgram {
        name: "scan",
        package: "grep",
        needs: &["grep", "xargs"],
        make: |maker| {
            maker.text_files(&mut SeededRandom::new(18), 400, 475_000, 6)?;
            maker.run("for letter in a b c d e f; do grep -l -F topic${letter}aaaa text/* | sort > list-$letter; done")
        },
        // Like glimpse: each search reads the files that an index names, about half of all.
        script: "for letter in a b c d e f; do xargs grep -c -F topic${letter}aaaa < list-$letter; done",
        ..LARGE
    },
    DearProgram {
        name: "lookups",
        package: "sqlite3",
        needs: &["sqlite3"],
        make: |maker| {
            maker.write(
                "fill.sql",
                "pragma page_size = 8192;\npragma journal_mode = off;\npragma synchronous = off;\n\
                 create table item (id integer primary key, name text);\n\
                 insert into item with recursive n(i) as (select 1 union all select i + 1 from n where i < 9000000) \
                 select i, printf('%0100d', i * 7919) from n;\n",
            )?;
            // Half of the rows that are looked up are among the first eighth of all rows.
            maker.write(
                "look.sql",
                "pragma cache_size = 400;\n\
                 with recursive n(i, x) as (select 1, 12345 union all select i + 1, x * 16807 % 2147483647 from n \
                 where i < 300000), u(u) as (select x / 2147483647.0 from n) \
                 select count(*), sum(length(name)), sum(id) from u join item \
                 on item.id = 1 + cast(8999999 * u.u * u.u * u.u as integer);\n",
            )?;
            maker.run("sqlite3 data.db < fill.sql >/dev/null")
        },
        script: "sqlite3 -readonly data.db < look.sql",
        ..LARGE
    },
];

/// The mixes: programs that run at the same time.
pub const MIXES: [&[&str]; 4] =
    [&["cscope", "sort"], &["cscope", "gnuplot"], &["glimpse", "postgres"], &["sort", "cpp", "ld"]];

impl DearProgram {
    /// All programs, in the order in which they run.
    pub fn all() -> impl Iterator<Item = &'static DearProgram> {
        PROGRAMS.iter().chain(LARGE_PROGRAMS.iter())
    }

    /// Finds a program by its name.
    pub fn named(name: &str) -> Option<&'static DearProgram> {
        DearProgram::all().find(|program| program.name == name)
    }

    /// The first executable that this machine lacks, if any.
    pub fn missing(&self) -> Option<&'static str> {
        let is_there = |need: &str| path().split(':').any(|folder| Path::new(folder).join(need).is_file());
        self.needs.iter().copied().find(|need| !is_there(need))
    }
}

/// The search path of programs.
pub fn path() -> String {
    PATHS.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every program of the paper is in a mix, and names its package.
    #[test]
    fn programs_are_mixed_and_name_package() {
        for program in &PROGRAMS {
            assert!(MIXES.iter().any(|mix| mix.contains(&program.name)), "{}", program.name);
        }
        for program in DearProgram::all() {
            assert!(!program.name.is_empty() && !program.package.is_empty() && !program.needs.is_empty());
            assert!(!program.script.is_empty(), "{}", program.name);
        }
        assert!(LARGE_PROGRAMS.iter().all(|program| program.blocks == LARGE_BLOCKS && program.seed_s.is_none()));
        assert!(MIXES.iter().flat_map(|mix| mix.iter()).all(|name| DearProgram::named(name).is_some()));
        assert!(DearProgram::named("sort").unwrap().missing().is_none(), "coreutils are everywhere");
    }
}
