//! Which session gets which export of a donor.

use super::name::SessionName;
use super::*;

const SLAB: u64 = SLAB_BYTES as u64;

fn donor(slabs: u64, quota: Option<u64>) -> Donor {
    let options = DonorOptions {
        memory_bytes: slabs * SLAB,
        quota_bytes: quota.map(|slabs| slabs * SLAB),
        on_demand: true,
        labels: vec!["rack=a".to_owned()],
    };
    Donor::new(options).unwrap()
}

fn session(donor: &Donor, size: &str, client: u64, epoch: u64) -> String {
    let session =
        SessionName { incarnation: donor.inner.incarnation, client, epoch, has_metadata: false, only_reads: false };
    let name = ExportName::parse(&format!("disk{size}")).unwrap();
    ExportName { session: Some(session), ..name }.to_string()
}

fn why(found: Result<Arc<Export>, ExportRefusal>) -> String {
    match found {
        Ok(export) => format!("found {}", export.name()),
        Err(ExportRefusal::Unknown(why)) => format!("unknown: {why}"),
        Err(ExportRefusal::Refused(why)) => format!("refused: {why}"),
    }
}

#[test]
fn device_past_memory_or_quota_refused() {
    let donor = donor(4, Some(3));
    let source = donor.source();
    assert!(why(source.find("a")).contains("unknown: this donor holds no device \"a\""));
    assert!(why(source.find("a/8M")).contains("(--quota)"));
    let first = source.find("a/6M").unwrap();
    assert!(why(source.find("b/4M")).contains("2M of 8M are free"));
    assert!(why(source.find("a/4M")).contains("has 6M here, not 4M"));
    assert!(Arc::ptr_eq(&first, &source.find("a").unwrap()), "connections share an export");
    assert!(why(source.find("")).contains("ID/SIZE"));
    let figures = donor.figures();
    assert_eq!((figures.promised_bytes, figures.free_bytes, figures.devices[0].connections), (3 * SLAB, SLAB, 1));
    // The device has no data and no client any more.
    drop(first);
    assert_eq!((donor.figures().devices.len(), donor.figures().free_bytes), (0, 4 * SLAB));
    assert!(source.find("b/6M").is_ok());
}

/// A device with data stays without a client; once all is trimmed and no client is left, it is removed.
#[tokio::test]
async fn trimmed_unused_device_is_removed() {
    let donor = donor(1, None);
    let source = donor.source();
    let export = source.find("a/1M").unwrap();
    nectary_block::write(&**export.device(), 4096, nectary_block::Buffer::copy_of(&[7; 4096])).await.unwrap();
    drop(export);
    assert_eq!(donor.figures().devices[0].used_bytes, 4096);
    assert!(why(source.find("b/1M")).contains("0 of 2M are free"));
    let export = source.find("a").unwrap();
    assert_eq!(nectary_block::read(&**export.device(), 4096, 4096).await.unwrap()[0], 7);
    export.device().discard(0, 1 << 20, nectary_block::IoContext::default()).await.unwrap();
    assert_eq!(donor.figures().devices.len(), 1);
    drop(export);
    assert!(source.find("b/1M").is_ok());
}

/// Another client is refused, and a later session shuts out earlier ones from its first request on.
#[tokio::test]
async fn device_has_one_client() {
    let donor = donor(2, None);
    let source = donor.source();
    let read = async |export: &Arc<Export>| nectary_block::read(&**export.device(), 0, 4096).await.map(drop);
    let first = source.find(&session(&donor, "/1M", 1, 1)).unwrap();
    read(&first).await.unwrap();
    assert!(why(source.find(&session(&donor, "", 2, 1))).contains("in use by another client (1)"));
    assert!(why(source.find("disk")).contains("in use by another client"));
    let second = source.find(&session(&donor, "", 1, 2)).unwrap();
    // The later session has sent no request yet.
    read(&first).await.unwrap();
    read(&second).await.unwrap();
    let refused = read(&first).await.unwrap_err();
    assert!(refused.detail.contains("a later session"), "{refused}");
    assert!(why(source.find(&session(&donor, "", 1, 1))).contains("a later session"));
    nectary_block::write(&**second.device(), 0, nectary_block::Buffer::copy_of(&[7; 4096])).await.unwrap();
    drop((first, second));
    assert!(source.find(&session(&donor, "", 2, 1)).is_ok());
}

/// Sessions of an earlier incarnation, and new devices on a donor that is leaving, are refused.
#[test]
fn stale_and_late_sessions_are_refused() {
    let donor = donor(2, None);
    let source = donor.source();
    let old = SessionName {
        incarnation: donor.inner.incarnation ^ 1,
        client: 1,
        epoch: 1,
        has_metadata: false,
        only_reads: false,
    };
    let name = ExportName { id: "disk".to_owned(), size_bytes: Some(1 << 20), session: Some(old) };
    assert!(why(source.find(&name.to_string())).contains("started again"));
    let kept = source.find("kept/1M").unwrap();
    donor.leave();
    assert!(why(source.find("new/1M")).contains("leaving"));
    assert!(Arc::ptr_eq(&kept, &source.find("kept").unwrap()));
}

#[test]
fn a_donor_describes_itself() {
    let donor = donor(3, Some(2));
    let source = donor.source();
    let export = source.find(PAGE_NAME).unwrap();
    let page = DonorPage::parse(export.description()).unwrap();
    assert_eq!((page.incarnation, page.memory_bytes, page.free_bytes), (donor.inner.incarnation, 3 * SLAB, 2 * SLAB));
    assert!(export.is_read_only() && page.labels == "rack=a");
    assert_eq!(source.list()[0].0, PAGE_NAME);
    assert!(
        Donor::new(DonorOptions { labels: vec!["rack".into()], memory_bytes: SLAB, ..Default::default() }).is_err()
    );
}

/// A device grows if there is memory, and earlier sessions keep their size.
#[tokio::test]
async fn device_grows_for_later_sessions() {
    let donor = donor(4, None);
    let source = donor.source();
    let first = source.find(&session(&donor, "/1M", 1, 1)).unwrap();
    nectary_block::write(&**first.device(), 0, nectary_block::Buffer::copy_of(&[7; 4096])).await.unwrap();
    let larger = source.find(&session(&donor, "/5M", 1, 2)).unwrap();
    assert_eq!([&first, &larger].map(|export| export.device().geometry().size_bytes), [1 << 20, 5 << 20]);
    assert_eq!(nectary_block::read(&**larger.device(), 0, 4096).await.unwrap()[0], 7);
    assert_eq!(nectary_block::read(&**larger.device(), (5 << 20) - 4096, 4096).await.unwrap()[0], 0);
    assert_eq!(donor.figures().promised_bytes, 3 * SLAB);
    // A smaller size is the least one; without a session the size must be that of the device.
    assert_eq!(source.find(&session(&donor, "/1M", 1, 3)).unwrap().device().geometry().size_bytes, 5 << 20);
    let _other = source.find("other/2M").unwrap();
    assert!(why(source.find(&session(&donor, "/7M", 1, 4))).contains("0 of 8M are free"));
    assert!(why(source.find(&session(&donor, "/6M", 2, 1))).contains("in use by another client"));
    assert!(why(source.find("disk/2M")).contains("has 5M here, not 2M"));
    donor.leave();
    assert!(why(source.find(&session(&donor, "/6M", 1, 6))).contains("leaving"));
    let bounded = self::donor(4, Some(2));
    let _first = bounded.source().find(&session(&bounded, "/1M", 1, 1)).unwrap();
    assert!(why(bounded.source().find(&session(&bounded, "/5M", 1, 2))).contains("--quota"));
}
