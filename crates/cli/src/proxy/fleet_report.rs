//! What a proxy tells of its fleet.
//!
//! Owns: the figures of its membership with those of questions between nodes and of certificates, and what is wrong with the
//! latter. Leaves to others: the text (`fleet_status`), the state of all else (`health`).

use std::time::{SystemTime, UNIX_EPOCH};

use nectary_host::PartProblem;
use nectary_host::fleet::{FleetCertificate, FleetFigures};
use nectary_proxy::FleetSeat;

/// The days before the end of a certificate from which on somebody should renew it.
const RENEW_DAYS: i64 = 14;

const DAY_S: i64 = 24 * 3600;

/// The figures of a fleet, of which a running proxy is a node.
pub fn figures_of(seat: &FleetSeat) -> FleetFigures {
    let mut figures = seat.figures();
    let now_s = now_s();
    let problems: Vec<_> = figures.certificates.iter().filter_map(|it| problem_of(it, now_s)).collect();
    figures.problems.extend(problems);
    figures
}

/// Unix seconds.
pub fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
}

/// The days until a certificate ends, rounded down; negative if it has ended.
pub fn days_left(certificate: &FleetCertificate, now_s: i64) -> i64 {
    certificate.not_after_s.saturating_sub(now_s).div_euclid(DAY_S)
}

/// What is wrong with a certificate, and what to do; `None` if nothing is.
fn problem_of(certificate: &FleetCertificate, now_s: i64) -> Option<PartProblem> {
    let FleetCertificate { key, path, .. } = certificate;
    let (who, remedy) = match key.starts_with("etcd") {
        true => ("etcd cannot be reached with it", "put a newer one into its place; it is read by itself"),
        false => (
            "nodes cannot ask each other with it",
            "put a newer one into its place, then `nectary` reads it at SIGHUP (`systemctl reload`)",
        ),
    };
    let what = match days_left(certificate, now_s) {
        ..0 => format!("fleet: the certificate {path} (`{key}`) has ended: {who}"),
        days @ 0..RENEW_DAYS => format!("fleet: the certificate {path} (`{key}`) ends in {days} days"),
        _ => return None,
    };
    Some(PartProblem { what, remedy: remedy.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_certificates_warn_before_their_end() {
        let said = |key: &str, seconds| {
            let certificate = FleetCertificate { key: key.to_owned(), path: "/f.pem".to_owned(), not_after_s: seconds };
            problem_of(&certificate, 0).map(|problem| (problem.what, problem.remedy))
        };
        assert_eq!(said("cert", RENEW_DAYS * DAY_S), None);
        let (what, remedy) = said("cert", RENEW_DAYS * DAY_S - 1).expect("a problem");
        assert_eq!(what, "fleet: the certificate /f.pem (`cert`) ends in 13 days");
        assert!(remedy.contains("SIGHUP"), "{remedy}");
        let (what, remedy) = said("etcd-ca", -1).expect("a problem");
        assert!(what.contains("has ended: etcd cannot be reached") && remedy.contains("by itself"), "{what}; {remedy}");
        assert!(said("ca", -1).expect("a problem").0.contains("nodes cannot ask each other"));
    }
}
