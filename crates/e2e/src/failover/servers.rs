//! A proxy whose origin has three servers with weights, and the share of the requests that each gets.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::FailoverOrigin;
use crate::http::HttpConnection;
use crate::nectary::{NectaryProxy, ProxyCommand};
use crate::rng::SeededRng;
use crate::scratch::ScratchFolder;

/// The servers of an origin.
pub const COUNT: usize = 3;

/// The longest time until all servers are found to be back.
const BACK_MAX: Duration = Duration::from_secs(10);

/// The requests by which shares are judged, for each unit of weight. A hash spreads keys by chance, so more are needed.
const REQUESTS_OF_WEIGHT: u64 = 60;
const REQUESTS_OF_WEIGHT_HASHED: u64 = 300;

/// The weights of the servers, and how they are chosen.
pub struct ServerWeights {
    weights: [u64; COUNT],
    balance: &'static str,
}

impl ServerWeights {
    /// Draws weights and a balance.
    pub fn new(rng: &mut SeededRng) -> ServerWeights {
        let weights = [0; COUNT].map(|_| 1 + rng.below(3));
        ServerWeights { weights, balance: ["round-robin", "least-outstanding", "hash"][rng.index(3)] }
    }

    /// The requests for each unit of weight, and the greatest difference from a share in percent.
    fn judged_by(&self) -> (u64, u64) {
        if self.balance == "hash" { (REQUESTS_OF_WEIGHT_HASHED, 40) } else { (REQUESTS_OF_WEIGHT, 10) }
    }

    /// Starts a proxy over the servers of a site.
    pub fn start(&self, scratch: &ScratchFolder, site: &FailoverOrigin) -> Result<NectaryProxy> {
        let command = ProxyCommand::new(scratch.path(), None)?;
        let servers: Vec<_> = (0..COUNT)
            .map(|index| format!("{{ url = \"http://{}\", weight = {} }}", site.address(index), self.weights[index]))
            .collect();
        let text = format!(
            "[[listener]]\naddress = \"{}\"\n[server]\nworkers = 1\n[store]\ndevice = \"{}\"\nsize = \"256M\"\n\
             memory = \"64M\"\n[origins.o]\nservers = [{}]\nbalance = \"{}\"\nretries = 2\nfirst-byte = \"1s\"\n\
             connect-time = \"500ms\"\n[[site]]\ndefault = true\n[[site.route]]\norigin = \"o\"\n",
            command.listen,
            command.store,
            servers.join(", "),
            self.balance,
        );
        let file = scratch.join("proxy.toml");
        std::fs::write(&file, text)?;
        command.start_with_file(&file)
    }

    /// What is wrong with the shares of the servers, all of which are well.
    pub fn judge(&self, nectary: &NectaryProxy, site: &FailoverOrigin) -> Result<Vec<String>> {
        let mut connection = HttpConnection::new(nectary.listen, Duration::from_secs(20));
        let mut number = 0;
        let mut ask = |kind: &str| {
            number += 1;
            let answered = connection.get(&format!("/{kind}/{number}?size=10"));
            answered.map(|response| response.status)
        };
        let begin = Instant::now();
        site.seen().requests.clear();
        while site.seen().requests.len() < COUNT {
            if begin.elapsed() > BACK_MAX {
                bail!("not all servers got requests in {BACK_MAX:?} after all were well");
            }
            ask("back")?;
            std::thread::sleep(Duration::from_millis(5));
        }
        // A server that is probed has got one request, and may still count as failing.
        std::thread::sleep(Duration::from_millis(100));
        (0..10).try_for_each(|_| ask("back").map(drop))?;
        site.seen().requests.clear();
        let (of_weight, percent_max) = self.judged_by();
        let total: u64 = self.weights.iter().sum();
        let mut problems = Vec::new();
        for _ in 0..total * of_weight {
            match ask("share") {
                Ok(200) => {}
                other => problems.push(format!("a request with all servers well: {other:?}")),
            }
        }
        let seen = site.seen();
        for (index, weight) in self.weights.iter().enumerate() {
            let (got, wanted) = (seen.requests.get(&index).copied().unwrap_or_default(), weight * of_weight);
            if got.abs_diff(wanted) * 100 > wanted * percent_max {
                let weights = &self.weights;
                problems.push(format!("{}, weights {weights:?}: server {index} got {got} of {wanted}", self.balance));
            }
        }
        Ok(problems)
    }
}
