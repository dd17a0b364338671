class NotesController < ActionController::API
  def index
    render json: Note.order(:id).pluck(:text)
  end

  def create
    Note.create!(text: params.require(:text))
    render json: {}, status: :created
  end

  def status
    render json: { onewrite: Note.connection.select_value("SELECT onewrite_status()") }
  end
end
