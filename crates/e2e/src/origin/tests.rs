//! The origin behaves as described, and the client sees each of its misbehaviours.

use super::*;
use crate::content;
use crate::http::{HttpConnection, RequestFailure};

fn client(origin: &DeterministicOrigin) -> HttpConnection {
    HttpConnection::new(origin.address(), Duration::from_secs(5))
}

#[test]
fn answers_depend_on_target_and_version() {
    let origin = DeterministicOrigin::start().unwrap();
    let mut client = client(&origin);
    for target in ["/o/1?size=100", "/o/2?size=300000&chunked", "/o/3", "/o/4?size=5000&close"] {
        for version in 1..=2 {
            let response = client.get(target).unwrap();
            let bytes = TargetAnswer::parse(target).bytes;
            assert_eq!((response.status, response.version()), (200, Some(version)), "{target}");
            assert!(response.body == content::body(target, version, bytes), "{target} version {version}");
            if version == 1 {
                assert_eq!(origin.bump(target), 2);
            }
        }
        assert_eq!(origin.count(target), TargetCounts { requests: 2, whole: 2, ..TargetCounts::default() });
    }
}

/// The answer is whole again after the version changes.
#[test]
fn known_tag_gets_304() {
    let origin = DeterministicOrigin::start().unwrap();
    let mut client = client(&origin);
    let tag = client.get("/o/1?size=10").unwrap().header("etag").unwrap().to_owned();
    assert_eq!(client.request("GET", "/o/1?size=10", &[("If-None-Match", &tag)]).unwrap().status, 304);
    origin.bump("/o/1?size=10");
    assert_eq!(client.request("GET", "/o/1?size=10", &[("If-None-Match", &tag)]).unwrap().status, 200);
    assert_eq!(origin.count("/o/1?size=10").not_modified, 1);
}

#[test]
fn vary_makes_contents_differ() {
    let origin = DeterministicOrigin::start().unwrap();
    let mut client = client(&origin);
    let target = "/o/1?size=64&vary=accept-language";
    let german = client.request("GET", target, &[("Accept-Language", "de")]).unwrap();
    let french = client.request("GET", target, &[("Accept-Language", "fr")]).unwrap();
    assert_eq!(german.header("vary"), Some("accept-language"));
    assert_ne!(german.body, french.body);
}

#[test]
fn misbehaviour_is_seen() {
    let origin = DeterministicOrigin::start().unwrap();
    let target = "/o/1?size=200000";
    let truncated = [
        OriginBehaviour::DieAfter(1000),
        OriginBehaviour::ChunkedDieAfter(100_000),
        OriginBehaviour::LieLonger(10),
        OriginBehaviour::ResetAfter(100_000),
    ];
    for behaviour in truncated {
        origin.set_behaviour(target, Some(behaviour));
        let result = client(&origin).get(target);
        assert!(matches!(result, Err(RequestFailure::Truncated { .. })), "{behaviour:?}: {result:?}");
    }
    for behaviour in
        [OriginBehaviour::Nonsense, OriginBehaviour::ChunkedNonsenseAfter(10), OriginBehaviour::EndlessHead(1 << 20)]
    {
        origin.set_behaviour(target, Some(behaviour));
        let result = client(&origin).get(target);
        assert!(matches!(result, Err(RequestFailure::Malformed(_))), "{behaviour:?}");
    }
    origin.set_behaviour(target, Some(OriginBehaviour::LieShorter(5)));
    assert_eq!(client(&origin).get(target).unwrap().body.len(), 199_995);
    origin.set_behaviour(target, Some(OriginBehaviour::CloseAtOnce));
    assert!(matches!(client(&origin).get(target), Err(RequestFailure::Connection(_))));
    origin.set_behaviour(target, None);
    assert_eq!(client(&origin).get(target).unwrap().body.len(), 200_000);
}
