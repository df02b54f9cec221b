//! The generator of the programs' inputs, which are always the same.
//!
//! Owns: the generation of C sources, words, lines, numbers, assembly and SQL. Leaves to others: the seeds, and the
//! choice of inputs for each program (`programs`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::random::SeededRandom;
use crate::{Error, ExperimentErrorKind};

/// Makes the inputs of one program in a folder.
pub struct InputGenerator {
    folder: PathBuf,
    path: String,
    is_nobody: bool,
}

impl InputGenerator {
    /// Makes a maker for `folder`. It finds programs by the search path `path`, and runs them as the user nobody if
    /// `is_nobody`.
    pub fn new(folder: PathBuf, path: &str, is_nobody: bool) -> InputGenerator {
        InputGenerator { folder, path: path.to_owned(), is_nobody }
    }

    /// Writes a file, and makes its parent folders.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.join(name);
        let parent = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(|error| Error::failed(parent.display(), error))?;
        std::fs::write(&path, text).map_err(|error| Error::failed(path.display(), error))
    }

    /// Runs a shell script in the folder; its output is dropped.
    pub fn run(&self, script: &str) -> Result<(), Error> {
        let mut command = Command::new("setpriv");
        if self.is_nobody {
            command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
        }
        command.args(["--pdeathsig", "KILL", "sh", "-ec", script]).current_dir(&self.folder);
        command.env_clear().env("PATH", &self.path).env("LC_ALL", "C").env("HOME", ".").env("TMPDIR", ".");
        let output = command.stdin(Stdio::null()).output().map_err(|error| Error::failed("setpriv", error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        let message = format!("making inputs: {}: {}", output.status, last.join("; "));
        Err(Error::new(ExperimentErrorKind::Failed, message))
    }

    /// Writes C files and the headers that they include. Their functions call each other; each C file has `padding`
    /// lines of comment.
    pub fn c_sources(
        &self,
        random: &mut SeededRandom,
        files: u64,
        functions: u64,
        header_lines: u64,
        padding: u64,
    ) -> Result<(), Error> {
        for header in 0..60 {
            let mut text = format!("#ifndef H{header}\n#define H{header}\n");
            for _ in 0..if header == 0 { 0 } else { 3 } {
                let _ = writeln!(text, "#include \"h{}.h\"", random.below(header));
            }
            for line in 0..header_lines {
                let _ = writeln!(text, "/* {} */", words(random, 9));
                let _ = writeln!(text, "#define M{header}_{line}(x) ((x) * {} + {line})", random.below(1000));
                let _ = writeln!(text, "extern int f{}_{}(int);", random.below(files), random.below(functions));
            }
            self.write(&format!("include/h{header}.h"), &(text + "#endif\n"))?;
        }
        for file in 0..files {
            let mut text = String::new();
            for _ in 0..6 {
                let _ = writeln!(text, "#include \"h{}.h\"", random.below(60).min(random.below(60)));
            }
            for _ in 0..padding {
                let _ = writeln!(text, "/* {} */", words(random, 9));
            }
            for function in 0..functions {
                let _ = writeln!(text, "int f{file}_{function}(int x)\n{{\n    int y = x & 255;");
                for _ in 0..4 {
                    let (to_file, to) = (random.below(files), random.below(functions));
                    let _ = writeln!(text, "    if (x > {})\n        y += f{to_file}_{to}(x - 1);", random.below(900));
                }
                text.push_str("    return y;\n}\n");
            }
            self.write(&format!("source/s{file}.c"), &text)?;
        }
        Ok(())
    }

    /// Writes files of `words_count` words; each of the `topics` has a line in about half of the files.
    pub fn text_files(
        &self,
        random: &mut SeededRandom,
        files: u64,
        words_count: u64,
        topics: u64,
    ) -> Result<(), Error> {
        for file in 0..files {
            let mut text = String::new();
            for word in 0..words_count {
                text.push_str(&letters(random.below(6000).min(random.below(6000))));
                text.push(if word % 10 == 9 { '\n' } else { ' ' });
            }
            for topic in (0..topics).filter(|_| random.chance(0.5)).collect::<Vec<_>>() {
                let _ = writeln!(text, "this line is about topic{} alone", letters(topic));
            }
            self.write(&format!("text/t{file}"), &text)?;
        }
        Ok(())
    }

    /// Writes lines that begin with a number, about `bytes` in total.
    pub fn numbered_lines(&self, random: &mut SeededRandom, name: &str, bytes: usize) -> Result<(), Error> {
        let mut text = String::new();
        while text.len() < bytes {
            let _ = writeln!(text, "{:09} {}", random.below(1_000_000_000), words(random, 5));
        }
        self.write(name, &text)
    }

    /// Writes rows of five numbers, about `bytes` in total.
    pub fn numbers(&self, random: &mut SeededRandom, name: &str, bytes: usize) -> Result<(), Error> {
        let mut text = String::new();
        let mut row = 0;
        while text.len() < bytes {
            let mut next = || random.below(100_000);
            let _ = writeln!(text, "{row} {} {} {} {}", next(), next(), next(), next());
            row += 1;
        }
        self.write(name, &text)
    }

    /// Writes assembly files whose functions call each other; each file has `data_bytes` of data.
    pub fn assembly(
        &self,
        random: &mut SeededRandom,
        files: u64,
        functions: u64,
        data_bytes: u64,
    ) -> Result<(), Error> {
        for file in 0..files {
            let mut text = String::from(".text\n");
            for function in 0..functions {
                let _ = writeln!(text, ".globl f{file}_{function}\nf{file}_{function}:");
                for _ in 0..4 {
                    let _ = writeln!(text, " call f{}_{}@PLT", random.below(files), random.below(functions));
                }
                text.push_str(" ret\n");
            }
            let _ = writeln!(text, ".data\ntable{file}: .fill {}, 8, {}", data_bytes / 8, random.below(1 << 30));
            self.write(&format!("s{file}.s"), &text)?;
        }
        Ok(())
    }

    /// Writes the SQL statements that make and fill the tables for the joins.
    pub fn sql(&self, random: &mut SeededRandom, name: &str, makers: u64, parts: u64) -> Result<(), Error> {
        let mut text = String::from(
            "create table maker (id integer primary key, name text, note text);\n\n\
             create table part (id integer primary key, maker integer, price integer, note text);\n\n",
        );
        let rows: Vec<String> =
            (1..=makers).map(|maker| format!("({maker}, 'maker {maker}', '{}')", words(random, 12))).collect();
        let _ = writeln!(text, "insert into maker values {};\n", rows.join(", "));
        let rows: Vec<String> = (1..=parts)
            .map(|part| {
                let (maker, price) = (random.below(makers) + 1, random.below(1000));
                format!("({part}, {maker}, {price}, '{}')", words(random, 10))
            })
            .collect();
        let _ = writeln!(text, "insert into part values {};\n\nvacuum analyze;\n", rows.join(", "));
        self.write(name, &text)
    }
}

/// A word of five letters for a number. It has no digits, because an index omits words with digits.
fn letters(number: u64) -> String {
    let letter = |place: u32| char::from(b'a' + (number / 26_u64.pow(place) % 26) as u8);
    (0..5).map(letter).collect()
}

fn words(random: &mut SeededRandom, count: u64) -> String {
    let words: Vec<String> = (0..count).map(|_| format!("word{}", random.below(5000))).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_each_time() {
        let folder = std::env::temp_dir().join(format!("nectary-bench-inputs-{}", std::process::id()));
        let mut found = Vec::new();
        for part in ["a", "b"] {
            let maker = InputGenerator::new(folder.join(part), "/usr/bin:/bin", false);
            maker.numbered_lines(&mut SeededRandom::new(3), "lines", 10_000).unwrap();
            maker.text_files(&mut SeededRandom::new(4), 3, 200, 4).unwrap();
            maker.assembly(&mut SeededRandom::new(5), 2, 3, 640).unwrap();
            let read = |name: &str| std::fs::read(folder.join(part).join(name)).unwrap();
            found.push([read("lines"), read("text/t2"), read("s1.s")]);
        }
        assert_eq!(found[0], found[1]);
        assert!(found[0][0].len() >= 10_000 && found[0][0].ends_with(b"\n"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
