//! Networks of clients, and who may use a site.
//!
//! Owns: the values of `allow` and `deny`.

use std::fmt;
use std::net::IpAddr;

use crate::place::LocatedValue;

/// An address, or a network of addresses, as `192.0.2.7`, `192.0.2.0/24` or `2001:db8::/32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpNetwork {
    /// The first address of the network. Bits after the prefix are 0.
    pub address: IpAddr,
    /// The bits that all addresses of the network share: 0 to 32 of IPv4, 0 to 128 of IPv6.
    pub prefix_bits: u8,
}

impl IpNetwork {
    /// Whether an address is in the network. An IPv4 address that is written as IPv6 (`::ffff:192.0.2.1`) is taken as
    /// IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (network, address) = (self.address, address.to_canonical());
        network.is_ipv4() == address.is_ipv4() && masked(address, self.prefix_bits) == network
    }

    /// The network of an address, or `None` if an address has fewer bits. Bits after the prefix are set to 0. A network of
    /// IPv4 addresses that are written as IPv6 is taken as one of IPv4.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Option<IpNetwork> {
        let (address, prefix_bits) = match (address.to_canonical(), prefix_bits.checked_sub(96)) {
            (of_ipv4 @ IpAddr::V4(_), Some(bits)) if address.is_ipv6() && bits <= 32 => (of_ipv4, bits),
            _ => (address, prefix_bits),
        };
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        (prefix_bits <= bits_max).then(|| IpNetwork { address: masked(address, prefix_bits), prefix_bits })
    }
}

/// The address with the bits after the prefix set to 0.
fn masked(address: IpAddr, prefix_bits: u8) -> IpAddr {
    let bits = u32::from(prefix_bits);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits_max = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix_bits == bits_max {
            return write!(f, "{}", self.address);
        }
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// Who may use a site or a route: not who is in `deny`; else who is in `allow`, or everyone if `allow` is empty. Others
/// get `403`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessRules {
    /// `allow`: the networks that may; everyone if it is empty. Default: empty.
    pub allow: Vec<LocatedValue<IpNetwork>>,
    /// `deny`: the networks that may not, also if they are in `allow`. Default: empty.
    pub deny: Vec<LocatedValue<IpNetwork>>,
}

impl AccessRules {
    /// Whether a client may use it.
    pub fn admits(&self, client: IpAddr) -> bool {
        !self.deny.iter().any(|network| network.contains(client))
            && (self.allow.is_empty() || self.allow.iter().any(|network| network.contains(client)))
    }

    /// Whether there are no rules, so that everyone may.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}
