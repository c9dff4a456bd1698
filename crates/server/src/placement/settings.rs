//! Settings of the whole cluster.

use super::{PlacementService, refused};
use crate::access::forwarded;
use std::sync::Arc;
use stele_placement::{Cluster, Config, SETTINGS, Setting};
use stele_proto::stele::control::v1::{
    ConfigItem, GetConfigRequest, RequestHeader, SetConfigRequest,
};
use tonic::Status;

impl PlacementService {
    pub(crate) fn is_setting(name: &str) -> bool {
        SETTINGS.iter().any(|setting| setting.name == name)
    }

    /// Returns the settings with these names, or all. `is_forwarded`: another node forwards a client's
    /// call.
    pub async fn settings(
        self: &Arc<Self>,
        names: &[String],
        is_forwarded: bool,
    ) -> Result<Vec<ConfigItem>, Status> {
        let is_wanted =
            |setting: &&Setting| names.is_empty() || names.iter().any(|name| name == setting.name);
        let wanted: Vec<&Setting> = SETTINGS.iter().filter(is_wanted).collect();
        if self.leads() {
            let items = |config: &Config| wanted.iter().map(|s| item(s, config)).collect();
            return self.read_state(|state| items(state.cluster.config())).await;
        }
        let from = RequestHeader { forwarded: is_forwarded, ..RequestHeader::default() };
        let (mut client, header, seen) = self.forward_client(Some(&from))?;
        let keys = wanted.iter().map(|setting| setting.name.to_owned()).collect();
        let request = GetConfigRequest { header: Some(header), keys };
        let answer = client.get_config(forwarded(request)).await;
        let answer = answer.map_err(|refusal| self.learn(refusal))?.into_inner();
        self.check_answer(&seen, None)?;
        Ok(answer.items)
    }

    pub(crate) async fn set_setting(
        self: &Arc<Self>,
        name: &str,
        value: &str,
        is_forwarded: bool,
    ) -> Result<ConfigItem, Status> {
        if !self.leads() {
            let from = RequestHeader { forwarded: is_forwarded, ..RequestHeader::default() };
            let (mut client, header, seen) = self.forward_client(Some(&from))?;
            let (key, value) = (name.to_owned(), value.to_owned());
            let request = SetConfigRequest { header: Some(header), key, value };
            let answer = client.set_config(forwarded(request)).await;
            let answer = answer.map_err(|refusal| self.learn(refusal))?.into_inner();
            self.check_answer(&seen, None)?;
            return answer.item.ok_or_else(|| Status::internal("the leader's answer is empty"));
        }
        self.check_forwarder().await?;
        let setting = Config::setting(name).map_err(refused)?;
        let number = setting.value_of(value);
        let number = number.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Config::check(name, number).map_err(refused)?;
        let plan = move |cluster: &Cluster, _| {
            Ok(((), cluster.plan_setting(setting.name, number).map_err(refused)?))
        };
        self.commit_decision(plan, |(), state| item(setting, state.cluster.config())).await
    }
}

fn item(setting: &Setting, config: &Config) -> ConfigItem {
    let value = config.get(setting.name).unwrap_or(setting.default);
    let source = if value == setting.default { "default" } else { "set" };
    let unit = crate::config::unit_of(setting.name);
    let bound = |bound: u64| match setting.names {
        [] => bound.to_string(),
        _ => String::new(),
    };
    ConfigItem {
        key: setting.name.to_owned(),
        value: setting.text_of(value),
        default_value: setting.text_of(setting.default),
        meaning: setting.meaning.to_owned(),
        unit: unit.to_owned(),
        live: true,
        source: source.to_owned(),
        minimum: bound(setting.min),
        maximum: bound(setting.max),
        names: setting.names.iter().map(|name| (*name).to_owned()).collect(),
    }
}
