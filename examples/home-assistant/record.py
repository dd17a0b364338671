"""Runs Home Assistant's core with its recorder alone, as configuration.yaml sets it up: `record.py CONFIGURATION DIRECTORY`.

Forty states are recorded; the recorder's own session says whether onewrite is in effect.
"""

import asyncio
import sys

import yaml
from homeassistant import config_entries, core, loader
from homeassistant.components.recorder import get_instance
from homeassistant.components.recorder.util import session_scope
from homeassistant.helpers import area_registry, device_registry, entity, entity_registry, issue_registry, translation
from homeassistant.helpers import recorder as helper
from homeassistant.setup import async_setup_component
from sqlalchemy import text

STATES = 40


async def main(configuration: str, directory: str) -> None:
    with open(configuration, encoding="utf-8") as file:
        settings = yaml.safe_load(file.read().replace("/config/", directory + "/"))
    hass = core.HomeAssistant(directory)
    hass.config.skip_pip = True
    loader.async_setup(hass)
    entity.async_setup(hass)
    translation.async_setup(hass)
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    await device_registry.async_load(hass)
    await area_registry.async_load(hass)
    await entity_registry.async_load(hass)
    await issue_registry.async_load(hass)
    helper.async_initialize_recorder(hass)
    if not await async_setup_component(hass, "recorder", settings):
        sys.exit("FAILED: the recorder does not start")
    await hass.async_start()
    recorder = get_instance(hass)
    await recorder.async_recorder_ready.wait()
    for n in range(STATES):
        hass.states.async_set("sensor.example", str(n))
    await recorder.async_add_executor_job(recorder.block_till_done)

    def status() -> str:
        with session_scope(hass=hass, read_only=True) as session:
            return session.execute(text("SELECT onewrite_status()")).scalar_one()

    answer = await recorder.async_add_executor_job(status)
    print(answer.splitlines()[0])
    await hass.async_stop()


asyncio.run(main(*sys.argv[1:]))
