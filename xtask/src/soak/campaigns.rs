//! The campaigns of `make soak`: which program runs each of them, and how long a round is.

/// The environment variable with which the instrumented program writes no profile, because it reads its coverage
/// itself.
pub const NO_PROFILE: (&str, &str) = ("LLVM_PROFILE_FILE", "/dev/null");

/// The program that a campaign runs.
pub enum Program {
    /// A program of the workspace that has several campaigns; its first argument is the name of one.
    Of { program: &'static str, campaign: &'static str },
    /// One module of a crate's tests.
    Tests { package: &'static str, module: &'static str },
    /// The targets of `nectary-fuzz`, one after another.
    Fuzz,
}

pub struct Campaign {
    pub name: &'static str,
    pub program: Program,
    /// The arguments of the program; `{seed}` stands for the round's seed, `{seconds}` for the time of a fuzz target.
    pub arguments: &'static [&'static str],
    /// The environment of the program; `{seed}` stands for the round's seed.
    pub environment: &'static [(&'static str, &'static str)],
    /// The placeholders in the arguments that set the size of a round. Each has a value for a full round and a value
    /// for a sample.
    pub extents: &'static [(&'static str, &'static str, &'static str)],
}

pub const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "policies",
        program: Program::Tests { package: "nectary-cache", module: "policies_agree_with_their_models" },
        arguments: &["--show-output"],
        environment: &[("PROPTEST_RNG_SEED", "{seed}"), ("PROPTEST_CASES", "{cases}")],
        extents: &[("{cases}", "20000", "2000")],
    },
    Campaign {
        name: "policies-outside",
        program: Program::Of { program: "research", campaign: "policies-outside" },
        arguments: &["--seed", "{seed}"],
        environment: &[],
        extents: &[],
    },
    Campaign {
        name: "store-model",
        program: Program::Of { program: "sim-campaigns", campaign: "store-model" },
        arguments: &["--seed", "{seed}", "--operations", "{operations}"],
        environment: &[],
        extents: &[("{operations}", "1000000", "200000")],
    },
    Campaign {
        name: "store-crash-states",
        program: Program::Of { program: "sim-campaigns", campaign: "store-crash-states" },
        arguments: &["--seed", "{seed}", "--workloads", "{workloads}", "--states", "{states}"],
        environment: &[],
        extents: &[("{workloads}", "200", "20"), ("{states}", "10000", "1000")],
    },
    Campaign {
        name: "store-unreadable",
        program: Program::Of { program: "sim-campaigns", campaign: "store-unreadable" },
        arguments: &["--seed", "{seed}", "--stride", "{stride}"],
        environment: &[],
        extents: &[("{stride}", "1", "64")],
    },
    Campaign {
        name: "store-concurrent",
        program: Program::Of { program: "sim-campaigns", campaign: "store-concurrent" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}", "--images", "{images}"],
        environment: &[],
        extents: &[("{runs}", "100000", "5000"), ("{images}", "10000", "1000")],
    },
    Campaign {
        name: "cache-concurrent",
        program: Program::Of { program: "sim-campaigns", campaign: "cache-concurrent" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}", "--images", "{images}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000"), ("{images}", "10000", "1000")],
    },
    Campaign {
        name: "ram-placement",
        program: Program::Tests { package: "nectary-ram", module: "placement_invariants" },
        arguments: &["--show-output"],
        environment: &[("PLACEMENT_SEED", "{seed}"), ("PLACEMENT_RUNS", "{runs}")],
        extents: &[("{runs}", "2000", "200")],
    },
    Campaign {
        name: "ram-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-simulation" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "5000")],
    },
    Campaign {
        name: "ram-donors",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "50", "2")],
    },
    Campaign {
        name: "ram-donors-parity-log",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "parity-log", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-donors-parity-cache",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "parity-cache", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-donors-adaptive",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "adaptive", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-donors-parity",
        program: Program::Of { program: "e2e-campaigns", campaign: "ram-donors" },
        arguments: &["--redundancy", "parity", "--rounds", "{donor-rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{donor-rounds}", "20", "1")],
    },
    Campaign {
        name: "ram-moves",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "mirror", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-parity",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "parity", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-parity-log",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "parity-log", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-parity-cache",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "parity-cache", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-moves-adaptive",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-moves" },
        arguments: &["--policy", "adaptive", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "20000", "1000")],
    },
    Campaign {
        name: "ram-parity-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-simulation" },
        arguments: &["--policy", "parity", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "2000")],
    },
    Campaign {
        name: "ram-log-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "ram-simulation" },
        arguments: &["--policy", "parity-log", "--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "2000")],
    },
    Campaign {
        name: "proxy-origins",
        program: Program::Of { program: "e2e-campaigns", campaign: "proxy-origins" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "200", "10")],
    },
    Campaign {
        name: "volume-journal",
        program: Program::Of { program: "sim-campaigns", campaign: "volume-journal" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "2000", "50")],
    },
    Campaign {
        name: "volume-simulation",
        program: Program::Of { program: "sim-campaigns", campaign: "volume-simulation" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}"],
        environment: &[],
        extents: &[("{runs}", "100000", "2000")],
    },
    Campaign {
        name: "volume-crash-states",
        program: Program::Of { program: "sim-campaigns", campaign: "volume-crash-states" },
        arguments: &["--seed", "{seed}", "--runs", "{runs}", "--least", "{distinct}"],
        environment: &[],
        extents: &[("{runs}", "200", "10"), ("{distinct}", "10000", "500")],
    },
    Campaign {
        name: "volume-maps",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-maps" },
        arguments: &["--rounds", "{rounds}", "--seconds", "{load}"],
        environment: &[],
        extents: &[("{rounds}", "100", "20"), ("{load}", "60", "5")],
    },
    Campaign {
        name: "volume-programs",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-programs" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "50", "3")],
    },
    Campaign {
        name: "volume-databases",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-databases" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "10", "1")],
    },
    Campaign {
        name: "volume-takeover",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-takeover" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "20", "3")],
    },
    Campaign {
        name: "volume-tree",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-tree" },
        arguments: &["--operations", "{operations}", "--calls", "{calls}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{operations}", "20000", "2000"), ("{calls}", "20000", "3000")],
    },
    Campaign {
        name: "volume-kills",
        program: Program::Of { program: "e2e-campaigns", campaign: "volume-kills" },
        arguments: &["--rounds", "{rounds}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{rounds}", "50", "3")],
    },
    Campaign {
        name: "store-spans",
        program: Program::Of { program: "sim-campaigns", campaign: "store-spans" },
        arguments: &["--seed", "{seed}"],
        environment: &[],
        extents: &[],
    },
    Campaign {
        name: "sigkill",
        program: Program::Of { program: "e2e-campaigns", campaign: "sigkill" },
        arguments: &["--rounds", "{kills}", "--seed", "{seed}", "--first-hit", "median"],
        environment: &[],
        extents: &[("{kills}", "20", "5")],
    },
    Campaign {
        name: "sigkill-lapping",
        program: Program::Of { program: "e2e-campaigns", campaign: "sigkill" },
        arguments: &["--lapping", "--planted", "--rounds", "{kills}", "--seed", "{seed}", "--first-hit", "median"],
        environment: &[],
        extents: &[("{kills}", "20", "5")],
    },
    Campaign {
        name: "disk-faults",
        program: Program::Of { program: "e2e-campaigns", campaign: "disk-faults" },
        arguments: &["--rounds", "{faults}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{faults}", "30", "3")],
    },
    Campaign {
        name: "attach-filesystems",
        program: Program::Of { program: "e2e-campaigns", campaign: "attach-filesystems" },
        arguments: &["--seconds", "{load}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{load}", "300", "20")],
    },
    Campaign {
        name: "cache-tree",
        program: Program::Of { program: "e2e-campaigns", campaign: "cache-tree" },
        arguments: &["--operations", "{operations}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{operations}", "1000000", "100000")],
    },
    Campaign {
        name: "cache-files",
        program: Program::Of { program: "e2e-campaigns", campaign: "cache-files" },
        arguments: &["--files", "{files}"],
        environment: &[],
        extents: &[("{files}", "1000000", "50000")],
    },
    Campaign {
        name: "nbd-kernel",
        program: Program::Of { program: "e2e-campaigns", campaign: "nbd-kernel" },
        arguments: &["--sessions", "{sessions}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{sessions}", "12", "3")],
    },
    Campaign {
        name: "restarts",
        program: Program::Of { program: "e2e-campaigns", campaign: "restarts" },
        arguments: &["--restarts", "{restarts}", "--seed", "{seed}"],
        environment: &[],
        extents: &[("{restarts}", "50", "10")],
    },
    Campaign {
        name: "package-clients",
        program: Program::Of { program: "e2e-campaigns", campaign: "package-clients" },
        arguments: &[],
        environment: &[],
        extents: &[],
    },
    Campaign {
        name: "fuzz",
        program: Program::Fuzz,
        arguments: &["--seed", "{seed}", "--seconds", "{seconds}"],
        environment: &[NO_PROFILE],
        extents: &[],
    },
];
