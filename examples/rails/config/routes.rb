Rails.application.routes.draw do
  resources :notes, only: [:index, :create]
  get "status", to: "notes#status"
end
