"""A headless Chromium where there is one: DOGRAPH_CHROMIUM and DOGRAPH_CHROMEDRIVER, or PATH."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser():
    """The browser and its driver; a reason to skip where one is missing."""
    browser = os.environ.get("DOGRAPH_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
    driver = os.environ.get("DOGRAPH_CHROMEDRIVER") or shutil.which("chromedriver") or ""
    missing = [name for name, path in (("chromium", browser), ("chromedriver", driver)) if not path]
    if missing:
        return None, f"{' and '.join(missing)} not found: make browser installs them (Debian)"
    return (browser, driver), ""


class Page:
    """One window, with what it complained of and what it asked the network for."""

    def __init__(self, driver):
        self.driver = driver

    def size(self, width, height=900, *, dark=False):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, address):
        self.complaints()
        self.driver.get(address)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, script, seconds=10):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds).until(lambda d: d.execute_script(script))

    def click(self, selector):
        """A real click, where the element is."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By

        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).click().perform()

    def press(self, selector, *keys):
        from selenium.webdriver.common.by import By

        self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(*keys)

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """Everything the page loaded or tried to, itself apart."""
        return self.run("return performance.getEntriesByType('resource').map((e) => e.name)")


@pytest.fixture(scope="session")
def page():
    found, reason = find_browser()
    if found is None:
        pytest.skip(reason)
    selenium = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = found[0]
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(found[1]))
    yield Page(driver)
    driver.quit()
