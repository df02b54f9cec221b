//! What is written is read as an equal value.

use nectary_config::{ProxyConfig, to_toml};
use proptest::prelude::*;

use crate::arbitrary::configuration;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_written_configuration_is_read_equal(config in configuration()) {
        let text = to_toml(&config);
        match ProxyConfig::parse("proxy.toml", &text) {
            Ok((again, _)) => {
                prop_assert_eq!(&config, &again);
                prop_assert_eq!(to_toml(&again), text);
            }
            Err(problems) => prop_assert!(false, "{}\n{}", problems[0], text),
        }
    }
}

#[test]
fn written_lines_fit_120_columns() {
    let (config, _) = ProxyConfig::parse(
        "proxy.toml",
        "listener = [{ address = \":80\" }]\nstore.device = \"a\"\n[forward-proxy]\ndefault-ttl = \"5m\"\n",
    )
    .expect("a right file");
    let text = to_toml(&config);
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    assert!(text.contains("# headers-max = 200"), "what is not set is shown:\n{text}");
}
