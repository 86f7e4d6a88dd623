// What every screen gets, and what every screen is. Types only: browsers never load this file.

import type { Connection } from "../pure/connection.js";
import type { KeyCommand } from "../pure/keys.js";
import type { Place } from "../pure/fragments.js";
import type { Meta } from "../shapes.js";
import type { Announce } from "./announcer.js";
import type { Api } from "./api.js";
import type { Clock } from "./clock.js";
import type { Feed } from "./feed.js";
import type { Router } from "./router.js";

export interface App {
  api: Api;
  clock: Clock;
  router: Router;
  feed: Feed;
  announce: Announce;
  meta: () => Meta;
  focusSearch: () => void;
}

/** Something that is kept up to date over a connection. */
export interface Streamed {
  connection: () => Connection;
  retry: () => void;
}

/** A screen is made when it is first shown, and kept: scrolling and choices survive a visit elsewhere. */
export interface Screen {
  element: HTMLElement;
  title: () => string;
  keys: KeyCommand[];
  /** Show a place; also called when only the query of the place has changed. */
  show: (place: Place) => void;
  /** Stop everything that costs something while the screen is not seen. */
  hide?: () => void;
  /** The board, the connection or who asks has changed. */
  changed?: () => void;
  /** The stream on which the screen depends, if that is not the feed. */
  stream?: () => Streamed | null;
  /** A second has passed. */
  tick?: () => void;
}

export type CreateScreen = (app: App) => Screen;
